# Sourced by the other scripts: makes and fills the virtual environment .venv.
# shellcheck shell=bash
#
#   ensure_venv [EXTRA...]   the package (editable) and extras of pyproject.toml; sets VENV, which HPC_ELASTIC_VENV
#                            moves: boxes of scripts/devcluster see the repository, but have a Python of their own
#   lowest_venv EXTRA...     the same with the lowest versions of all packages, beside it; sets LOWEST
#   install_copy             an installed copy that every user of this machine can run; sets COPY
#   slurm_among ARGS...      print the version of Slurm that is asked for among a script's arguments
#   open_box VERSION [PACKAGE...]   the box of that version with its Python; exit code 3: not to be had today
#   go_into_box VERSION SCRIPT ARGS...   become a script in an open box, which then calls use_box

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
umask 022 # what root installs here, the users of a test cluster must be able to read

say() { printf '%s\n' "$*" >&2; }
die() { say "${0##*/}: $*"; exit 1; }
is_root() { [ "$(id -u)" = 0 ]; }

# Run a command as a user without any rights; only root can ask.
# The shell between matters: setpriv itself still has root's rights when it starts a program.
as_nobody() {
    (cd / && setpriv --reuid=65534 --regid=65534 --clear-groups -- sh -c 'exec "$@"' sh "$@") 2>/dev/null
}

# A directory for things that every user can read, where the repository itself is closed to them.
open_directory() {
    local directory
    for directory in "${TMPDIR:-/tmp}" /tmp /var/tmp; do
        if as_nobody test -x "$directory"; then
            echo "$directory"
            return
        fi
    done
    die "no temporary directory that all users can enter"
}

path_hash() { printf '%s' "$repository" | sha256sum | cut -c1-12; }

# Print the interpreter to build on. As root it is one that other users can run, if there is one:
# the jobs of the test cluster belong to them.
find_python() {
    local name found first=""
    for name in ${PYTHON:+"$PYTHON"} python3 /usr/bin/python3 python3.14 python3.14 python3.13 python3.12 python3.11 python3.10; do
        found=$("$name" -c 'import sys; assert sys.version_info >= (3, 10); print(sys.executable)' 2>/dev/null) \
            || continue
        first=${first:-$found}
        if ! is_root || as_nobody "$found" -c ''; then
            echo "$found"
            return
        fi
    done
    [ -n "$first" ] || die "no Python 3.10 or newer found; name one: PYTHON=/path/to/python ${0##*/}"
    say "note: other users cannot run $first; tests on a real Slurm need an interpreter that they can run"
    echo "$first"
}

need_venv_module() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null && return
    if is_root && command -v apt-get >/dev/null; then
        say "installing python3-venv"
        apt_install python3-venv && "$1" -c 'import ensurepip, venv' 2>/dev/null && return
    fi
    die "$1 cannot make virtual environments; install its venv module (Debian, Ubuntu: python3-venv)"
}

quiet_apt() { DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@" </dev/null; }

apt_install() {
    local log install=(install -y --no-install-recommends "$@")
    log=$(mktemp)
    if ! quiet_apt "${install[@]}" >"$log" 2>&1; then
        quiet_apt update >>"$log" 2>&1 || true
        quiet_apt "${install[@]}" >>"$log" 2>&1 || { tail -n 20 "$log" >&2; rm -f "$log"; return 1; }
    fi
    rm -f "$log"
}

# Make .venv: a directory, or a link to one outside if users cannot enter the repository.
make_venv() {
    local python place
    VENV=${HPC_ELASTIC_VENV:-$repository/.venv}
    if [ -x "$VENV/bin/python" ] && [ "$(cat "$VENV/made-for" 2>/dev/null)" = "$repository" ]; then
        return
    fi
    if [ -e "$VENV" ] && [ ! -e "$VENV/made-for" ] && [ ! -L "$VENV" ]; then
        die "$VENV was not made by these scripts; move it away"
    fi
    python=$(find_python)
    need_venv_module "$python"
    rm -rf "$VENV" 2>/dev/null || true
    if is_root && ! as_nobody test -x "$repository"; then
        place=$(open_directory)/hpc_elastic-venv-$(path_hash)
        rm -rf "$place"
        mkdir "$place" # fails if somebody else owns the name
        ln -sfn "$place" "$VENV"
    fi
    say "making $VENV with $python"
    "$python" -m venv "$(readlink -m "$VENV")"
    echo "$repository" >"$VENV/made-for"
}

quiet_pip() {
    local log
    log=$(mktemp)
    if ! "$VENV/bin/python" -m pip --disable-pip-version-check --no-input "$@" >"$log" 2>&1; then
        tail -n 40 "$log" >&2
        rm -f "$log"
        die "pip could not do: $*"
    fi
    rm -f "$log"
}

ensure_venv() {
    local extra wanted key missing=()
    exec 9<"$repository/pyproject.toml"
    flock 9 # several scripts may start at the same time
    make_venv
    key=$(sha256sum <"$repository/pyproject.toml")
    for extra in base "$@"; do
        [ "$(cat "$VENV/has-$extra" 2>/dev/null)" = "$key" ] || missing+=("$extra")
    done
    if [ ${#missing[@]} -gt 0 ]; then
        wanted=$(IFS=,; echo "${missing[*]}")
        wanted=${wanted#base}
        wanted=${wanted#,}
        say "installing hpc_elastic${wanted:+ with $wanted} into .venv (the first time this takes minutes)"
        quiet_pip install --editable "$repository${wanted:+[$wanted]}"
        for extra in "${missing[@]}"; do echo "$key" >"$VENV/has-$extra"; done
    fi
    exec 9<&-
}

# lowest_venv EXTRA...: an environment beside .venv with the lowest versions that pyproject.toml admits, on the
# same Python; sets LOWEST
lowest_venv() {
    local extra extras
    ensure_venv dev
    LOWEST=$repository/build/lowest
    mkdir -p "$repository/build"
    extras=$(IFS=,; echo "$*")
    "$VENV/bin/uv" venv --quiet --clear --python "$VENV/bin/python" "$LOWEST"
    VIRTUAL_ENV=$LOWEST "$VENV/bin/uv" pip install --quiet --resolution lowest-direct --editable "${repository}[$extras]"
    echo "$repository" >"$LOWEST/made-for"
    for extra in base "$@"; do sha256sum <"$repository/pyproject.toml" >"$LOWEST/has-$extra"; done
}

copy_place() { echo "$(open_directory)/hpc_elastic-copy-$(path_hash)"; }

# A second environment: the built wheel, and beside it the libraries of .venv. It needs nothing of the
# repository. Fails if other users cannot run it.
install_copy() {
    local wheels
    COPY=$(copy_place)
    rm -rf "$COPY"
    mkdir "$COPY" || return # fails if somebody else owns the name
    "$VENV/bin/python" -m venv --without-pip "$COPY" || return
    wheels=$(mktemp -d)
    quiet_pip wheel --no-deps --wheel-dir "$wheels" "$repository"
    quiet_pip --python "$COPY/bin/python" install --no-deps "$wheels"/*.whl
    rm -rf "$wheels"
    "$VENV/bin/python" -c 'import os, sysconfig; print(os.path.realpath(sysconfig.get_path("purelib")))' \
        >"$("$COPY/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/libraries.pth"
    as_nobody "$COPY/bin/python" -c 'import hpc_elastic, submitit'
}

slurm_among() {
    while [ $# -gt 0 ]; do
        case $1 in
            --slurm) echo "${2:-}" ;;
            --slurm=*) echo "${1#*=}" ;;
        esac
        shift
    done
}

# exit code 3: its Debian is not released, and not to be had
open_box() {
    local version=$1
    shift
    "$repository/scripts/devcluster" --slurm "$version" open || return
    "$repository/scripts/devcluster" --slurm "$version" run --network \
        "$repository/scripts/test" --in-box-prepare "$@" || return 1
}

go_into_box() {
    HPC_ELASTIC_IN_BOX=yes exec "$repository/scripts/devcluster" --slurm "$1" run "${@:2}"
}

# In a box the installed copy runs both a script and what it starts as other users.
use_box() {
    [ "${HPC_ELASTIC_IN_BOX:-}" = yes ] || return 0
    export HPC_ELASTIC_TEST_PYTHON
    HPC_ELASTIC_TEST_PYTHON=$(copy_place)/bin/python
}
