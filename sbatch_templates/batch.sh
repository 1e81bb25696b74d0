#!/bin/bash -p
# What a job script of hpc_elastic does beside its one srun.
#
# `hpc-elastic submit` puts a copy of this file into the run directory. The job script reads that copy once,
# and runs its text only if the text has the checksum that the script was made with. The functions run in the
# batch script's own shell, on the first node of the job, except for those of the last section.
#
# The job script sets `_he_elastic` (the command of hpc_elastic), `_he_agent` and `_he_finish` (the flags of
# `hpc-elastic run` and `hpc-elastic finish`). It uses `_he_nodes` (the number of nodes for srun), `_he_task`
# (what srun runs on each node), `_he_epilog` (what Slurm runs there afterwards; empty: nothing) and `_he_again`
# (not empty: this is a further srun), which are set here. The variables of the shell of a job are called so:
# bash exports what is assigned to a name of the environment, and the workers' own `nodes` would be lost.
# shellcheck disable=SC2034,SC2154

_he_signals=(TERM INT HUP USR1 USR2)  # those that Slurm and people send to a batch script
_he_beats=''
_he_watcher=''  # these two: the processes beside this one
_he_again=''
_he_part=.  # where the records of this job are, below the run directory
_he_heard=''  # not empty: SIGTERM has come, so that Slurm may be ending this job

# --- The beginning of the job -------------------------------------------------------------------------------

# Takes the arguments of the job script. $1: how often the run was submitted before, as in `sbatch job.sbatch
# 1`. $2: how many jobs of the same submission came before this one in its place. $3: how many seconds saves
# of this run need, if that is more than the script says; sbatch got a --signal that fits. 0: as it says.
# $4: not empty for a job that was queued with --requeue=expedite.
begin_job() {
  _he_python_before=$(type -P python3)
  listen  # this shell outlives srun, and then decides
  export HPC_ELASTIC_SUBMISSION=${1:-0} HPC_ELASTIC_LINK=${2:-0} HPC_ELASTIC_RELAUNCH=0
  export HPC_ELASTIC_EXPEDITED=${4:-}
  [ "${3:-0}" = 0 ] || _he_agent+=(--warn-timeout="$3")
  require_run
  [ "${SLURM_RESTART_COUNT:-0} $HPC_ELASTIC_LINK" = '0 0' ] || begin_again
}

# Has the ends of earlier starts charged that nobody was left to record, and ends the job if a budget is spent
# by that. Where this cannot be run the job begins, and those ends stay uncounted once its agents have begun.
begin_again() {
  local said code
  for _ in 1 2; do  # a signal may come in the moment before it is ignored there
    said=$(trap '' "${_he_signals[@]}" && exec "${_he_elastic[@]}" finish "${_he_finish[@]}" --begins)
    code=$?
    [ "$code" -gt 128 ] || break
  done
  [ "$(number_of "$said")" != 0 ] || exit "$code"
}

# Prints the last line of what finish has printed, if that is a number. A container or another program around
# Python may have printed lines of its own before.
number_of() {
  local last=${1##*$'\n'}
  case $last in
    '' | *[!0-9]*) ;;
    *) echo "$last" ;;
  esac
}

# Has signals not end this shell. A SIGTERM that comes before srun was not heard by any agent.
listen() {
  trap : "${_he_signals[@]}"
  trap '_he_heard=TERM' TERM
}

# Makes the command `module` on a node whose shells do not have it. A text and no function, since what the
# files declare has to be global.
# shellcheck disable=SC2016
_he_find_modules='
  for _he_file in /etc/profile.d/modules.sh /etc/profile.d/lmod.sh; do
    type module > /dev/null 2>&1 || [ ! -r "$_he_file" ] || . "$_he_file" || :
  done
  type module > /dev/null 2>&1 || no_modules
  _he_python_before=$(type -P python3) || :
'

# Defines a `module` for a node that has none.
no_modules() {
  # shellcheck disable=SC2329  # the script calls it
  module() {
    echo "$(uname -n) has no \`module\` command, and no file in /etc/profile.d makes one" >&2
    failed setup 127 "module $*"
  }
}

# --- The Python of the workers ------------------------------------------------------------------------------

# Makes a conda environment that of this shell, by the documented hook of conda, mamba or micromamba.
# $1: its name or directory.
use_conda() {
  local _he_name=$1 _he_program _he_at
  for _he_program in "${CONDA_EXE:-}" "${MAMBA_EXE:-}" {conda,mamba,micromamba} \
    ~/{miniforge,miniconda,mambaforge,anaconda}3/bin/conda; do
    _he_at=$(type -P -- "$_he_program") && break
  done
  [ -n "$_he_at" ] || no_python "conda environment $_he_name: there is no conda, mamba or micromamba"
  _he_program=${_he_at##*/}
  if [ "$_he_program" = conda ]; then
    eval "$("$_he_at" shell.bash hook)" && conda activate "$_he_name"
  else
    eval "$("$_he_at" shell hook --shell bash)" && "$_he_program" activate "$_he_name"
  fi || no_python "there is no conda environment $_he_name"
  [ -x "${CONDA_PREFIX:-}/bin/python3" ] || no_python "the conda environment $_he_name has no Python"
}

# Makes a virtual environment that of this shell. $1: its directory.
use_venv() {
  [ -d "$1" ] || no_python "there is no virtual environment $1"
  [ -x "$1/bin/python3" ] || no_python "the virtual environment $1 has no Python: its link leads nowhere"
  export VIRTUAL_ENV=$1 PATH=$1/bin:$PATH
  unset PYTHONHOME
}

# Ends the job: no other start of it would find the Python on this node. $1: why.
no_python() { failed setup 127 "$1 on $(uname -n)"; }

# Has the workers' Python find this package, and nothing else of ours. $1: the directory that has it alone.
# Workers may have a path of their own.
share_package() {
  export PYTHONPATH=${PYTHONPATH:+$PYTHONPATH:}$1
  [ -z "${HPC_ELASTIC_WORKER_ENV_PYTHONPATH:-}" ] || HPC_ELASTIC_WORKER_ENV_PYTHONPATH+=:$1
}

# Ends the job if the workers' Python cannot run their script. Names it by its path, for another node may lack
# it and have another one on PATH. $1: as above. The others: packages that the script imports.
check_python() {
  local said
  share_package "$1"
  shift
  [ "${_he_worker[0]}" != python3 ] || _he_worker[0]=$(type -P python3)
  # Any Python can read this. It imports nothing from the working directory, which others may write to.
  said=$(PYTHONPATH=${HPC_ELASTIC_WORKER_ENV_PYTHONPATH:-$PYTHONPATH} python3 -c '
import sys
names = sys.argv[1:]
here = sys.path.pop(0)
if "hpc_elastic" in names and sys.version_info < (3, 10):
    sys.exit("is Python %d.%d, and hpc_elastic.worker needs 3.10 or newer" % sys.version_info[:2])
from importlib.util import find_spec
sys.path.insert(0, here)
lacks = [name for name in names if find_spec(name) is None]
sys.exit("has no %s, which the script imports" % ", ".join(lacks) if lacks else 0)
' "$@" 2>&1) && return
  no_python "the workers' Python $(type -P python3) ${said##*$'\n'} (the agents run with ${_he_elastic[0]})"
}

# Takes the Python that modules have brought for that of the workers, unless ours is an environment of it.
# $1: as for share_package.
take_python() {
  local found
  found=$(another_python) || return 0
  echo "hpc_elastic: the workers run with $found of the modules, the agents with ${_he_elastic[0]}"
  _he_worker[0]=$found
  share_package "$1"
}

# Tells of a Python that setup lines have activated, as the workers run with another one.
tell_python() {
  local found
  found=$(another_python) || return 0
  echo "hpc_elastic: setup has put $found first, and the workers run with ${_he_worker[0]}:" \
    "--conda NAME or --venv DIR has them run with another Python" >&2
}

# Prints the Python that is the first one on PATH, if it was not before, and is another than the workers'. That
# of a virtual environment is its own, and one of which the workers' Python is an environment is no other.
another_python() {
  local found ours
  found=$(type -P python3) && [ "$found" != "$_he_python_before" ] || return 1
  ours=$(type -P -- "${_he_worker[0]}")
  [ "${found%/*}" != "${ours%/*}" ] || return 1
  [ -e "${found%/*}/../pyvenv.cfg" ] || [ "$(readlink -f -- "$found")" != "$(readlink -f -- "$ours")" ] || return 1
  echo "$found"
}

# --- The run directory --------------------------------------------------------------------------------------

# Changes into the run directory. 1: it does not answer. 2: it is not the one that was submitted, or others
# can write to it. Another user who can rename a directory above it may have put another one in its place.
enter_run() {
  local found run
  if [ -L "$HPC_ELASTIC_RUN_DIR" ]; then  # a link must be the user's own
    found=$(stat -c %u -- "$HPC_ELASTIC_RUN_DIR" 2> /dev/null) || return 1
    [ "$found" = 0 ] || [ "$found" = "$EUID" ] || return 2
  fi
  if ! cd -- "$HPC_ELASTIC_RUN_DIR" 2> /dev/null; then
    [ ! -e "$HPC_ELASTIC_RUN_DIR" ] || [ -O "$HPC_ELASTIC_RUN_DIR" ] || return 2
    return 1
  fi
  # From here on nothing depends on the path: the checks are those of the directory that was entered.
  found=$(stat -c '%u %A' . 2> /dev/null) || return 1
  [[ $found == "$EUID d"????-??-* ]] || return 2
  run=$(cat run.json 2> /dev/null) || return 1
  [[ $run == *"\"run_id\": \"$HPC_ELASTIC_RUN_ID\""* ]] || return 2
}

# Ends the job if another directory is in the place of the run directory. Slurm may be appending this output
# to a file of another user's choice by now, so the one line depends on nothing that is in the directory.
require_run() {
  (enter_run)
  [ "$?" -eq 2 ] || return 0
  echo "hpc_elastic: another directory is in the place of $HPC_ELASTIC_RUN_DIR, or others can write to it:" \
    "nothing is started, and nothing requeued" >&2
  not_again
  exit 76
}

# Prints this start of the job as the names in members/ have it.
start_name() {
  echo "$HPC_ELASTIC_SUBMISSION-$HPC_ELASTIC_LINK-${SLURM_RESTART_COUNT:-0}-$HPC_ELASTIC_RELAUNCH"
}

# --- The end of the job -------------------------------------------------------------------------------------

# Slurm holds a job that was queued with --requeue=expedite when its script ends with an exit code, unless the
# job may not be requeued. finish sees to that; this is for a script that ends without it.
not_again() {
  local job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID:-}}
  [ -z "$HPC_ELASTIC_EXPEDITED" ] || scontrol update "JobId=${job:-$SLURM_JOB_ID}" Requeue=0 2> /dev/null
}

# Runs `hpc-elastic finish`, again where Python cannot be run: its file system may be away for a while. Prints
# the number of nodes that finish has printed: it does so for another srun, and where it ends with the code of
# a worker that is also the shell's for a program that cannot be run.
run_finish() {
  local pause code='' _he_nodes
  for pause in 0 5 10 20 40 60 60 60; do
    if [ -n "$code" ]; then
      echo "hpc_elastic: finish cannot be run (exit code $code); again in $pause s" >&2
      sleep "$pause"
    fi
    _he_nodes=$("${_he_elastic[@]}" finish "${_he_finish[@]}" "$@")
    code=$?
    _he_nodes=$(number_of "$_he_nodes")
    case $code in
      126 | 127) [ -n "$_he_nodes" ] || continue ;;
      0 | 75 | 76 | 80) ;;
      *) not_again ;;  # it may have ended by a fault of its own
    esac
    echo "$_he_nodes"
    return "$code"
  done
  not_again
  echo "hpc_elastic: finish cannot be run (exit code $code), so nothing is requeued;" \
    "to go on: hpc-elastic submit --resume $(printf %q "$HPC_ELASTIC_RUN_DIR")" >&2
  return "$code"
}

# Ends the job because a line of the script has failed before srun. finish records it and requeues the job or,
# after some times, gives it up. $1: what failed. $2: its exit code. $3: the line.
failed() {
  trap - ERR EXIT
  set +e
  echo "hpc_elastic: $1 failed (exit code $2): $3" >&2
  trap '' "${_he_signals[@]}"
  # the line may have a secret in it, and other users see the arguments of processes
  HPC_ELASTIC_LAUNCH_FAILURE=$3 run_finish --launch-failure-in="$1" --launch-failure-code="$2" > /dev/null
  exit "$?"
}

# Ends the job after srun, as finish says, or returns with the number of nodes for another srun. $1: srun's
# exit code.
finish_srun() {
  local code
  [ -z "$_he_watcher" ] || kill -9 "$_he_watcher" 2> /dev/null
  _he_watcher=''
  trap '' "${_he_signals[@]}"  # finish inherits that, so Slurm's signals do not kill it
  _he_nodes=$(run_finish --srun-exit-code="$1" --relaunch="$HPC_ELASTIC_RELAUNCH")
  code=$?
  listen
  [ "$code" -eq 80 ] || exit "$code"
  _he_heard=''
  _he_again=yes  # that srun waits for 45 s at most: a node that rebooted can keep the old step alive for ever
  return "$code"
}

# --- A job script of the user's own -------------------------------------------------------------------------

# Those that may be sent to a batch script by --signal=B: or scancel --batch, and end it or are caught by it.
_he_of_scripts=(HUP INT QUIT ABRT TERM USR1 USR2 URG XCPU)

# Runs the script, and ends the job as finish says. $1: the checksum of the file. The others: its interpreter,
# with the argument that its first line has, the file, and the arguments.
#
# Another user may be able to put another directory in the place of the run's at any moment. So the file is
# read once, and what is compared with the checksum is what runs. A program in Python finds modules beside it.
#
# The script has the environment, working directory and streams of this shell, and is no direct child of it:
# `wait` of bash can miss the end of a child when a signal comes just then. So this shell reads a pipe.
run_script() {
  local expected=$1 file=$HPC_ELASTIC_RUN_DIR/slurm_script signal at=1
  local news=''  # a pipe: the events, a line each
  local script=''  # the process of the script
  local ended=''  # its exit code
  local copy=''  # the directory of the copy that runs
  local -a looks=()  # the processes that look at Slurm while the script may still save, the newest last
  shift
  local -a words=("$@")
  [ "${words[at]}" = "$file" ] || at=2
  [ "${SLURM_RESTART_COUNT:-0} $HPC_ELASTIC_LINK" != '0 0' ] || begin_again  # a further start has done it
  # the run of a task of an array is in the directory of the array; `finish` has made it
  [ -z "${SLURM_ARRAY_JOB_ID:-}" ] || _he_part=./tasks/$SLURM_ARRAY_TASK_ID
  copy_script "$file"
  words[at]=$copy/slurm_script
  [ "$(sha256sum 2> /dev/null < "${words[at]}")" = "$expected  -" ] || {
    rm -rf -- "$copy"
    failed 'the job script' 127 "$file is gone, is not the one that was submitted, or cannot be copied to /tmp"
  }
  keep_output
  start_beside beat
  _he_beats=$!
  [ -z "$_he_heard" ] || end_script "$((128 + 15))"  # SIGTERM has come: Slurm may be ending this job
  exec {news}<> <(:)
  note_signals &
  _he_watcher=$!
  for signal in "${_he_of_scripts[@]}"; do
    # shellcheck disable=SC2064
    trap "echo got $signal >&$news" "$signal"
  done
  await_script "${words[@]}" <&0 &
  hear_news "$!"
  end_script "$ended"
}

# Copies the script to where no other user can exchange it. If this shell is killed, the next agent or script
# of this user on the node removes the copy: it has the name of an agent's directory. It is a program where a
# file system allows one, as that of Slurm is: a script may run itself as "$0". $1: the file.
copy_script() {
  local place tried=0
  remove_left /dev/shm
  remove_left /tmp
  for place in /dev/shm /tmp /dev/shm /tmp; do
    tried=$((tried + 1))
    printf -v copy '%s/hpc_elastic-%s-%s-%04x%04x' "$place" "$EUID" "$$" "$RANDOM" "$RANDOM"
    mkdir --mode=700 -- "$copy" || continue
    dd if="$1" of="$copy/slurm_script" iflag=nofollow,nonblock,fullblock bs=1M count=64 &&
      chmod 700 -- "$copy/slurm_script" && { [ -x "$copy/slurm_script" ] || [ "$tried" -gt 2 ]; } && return
    rm -rf -- "$copy"
  done 2> /dev/null
}

# Runs the script and tells its process and its end; the same signals end this process as little as the first.
await_script() {
  trap - EXIT
  trap : "${_he_of_scripts[@]}"
  (
    echo "pid $BASHPID" >&"$news"
    exec {news}>&-
    trap - "${_he_of_scripts[@]}"  # INT and QUIT, too: a shell has them ignored in the background
    restore_environment
    unset HPC_ELASTIC_{RUN_DIR,RUN_ID,SUBMISSION,LINK,RELAUNCH,EXPEDITED}  # agents below it are of other runs
    exec "$@"
  )
  echo "end $?" >&"$news"
}

# Gives the variables of the job the values again with which this shell was started. The job may have one with
# a name that is used here, as `sbatch --export=ALL,script=train.py` makes: bash exports what is assigned to it.
restore_environment() {
  local hpc_elastic_entry hpc_elastic_name
  while IFS= read -r -d '' hpc_elastic_entry; do
    hpc_elastic_name=${hpc_elastic_entry%%=*}
    [[ $hpc_elastic_name =~ ^[a-zA-Z_][a-zA-Z0-9_]*$ ]] || continue  # functions, which bash hands on itself
    unset -v "$hpc_elastic_name" && export "${hpc_elastic_entry?}"
  done < "/proc/$$/environ"
} 2> /dev/null

# Tells the signals that come to a process beside the batch script.
note_signals() {
  local signal
  trap - EXIT
  for signal in "${_he_of_scripts[@]}"; do
    # shellcheck disable=SC2064
    trap "echo both $signal >&$news" "$signal"
  done
  exec 2> /dev/null
  open_pause
  while kill -0 $$; do pause 10; done
}

# Waits for the end of the script, and gives it the signals that come to this shell. Slurm sends signals to the
# batch script, and with some plug-ins (proctrack/linuxproc, proctrack/pgid) to all processes of the job as
# well; then the script has them already. $1: the process that runs the script.
hear_news() {
  local event about signal patience part
  local line=''  # a read that its time limit ends may have the beginning of a line
  local killed=''  # its exit code, if the process that runs it is gone and has told no end
  local -a got=() left
  local -A both=()  # at which second it came to a process beside this one
  until [ -n "$ended" ]; do
    patience=3
    [ -z "${got[*]}$killed" ] || patience=0.3  # for the same signal beside this shell, for what is in the pipe
    if IFS= read -r -t "$patience" part <&"$news"; then
      line+=$part
      event=${line%% *} about=${line#* } line=''
      case $event in
        pid) script=$about ;;
        end) ended=$about ;;
        both) both[$about]=$SECONDS ;;
        got)
          got+=("$about")
          [ "$about" != TERM ] || look_early
          ;;
      esac
      continue
    fi
    line+=$part
    [ -n "$script" ] || continue
    left=("${got[@]}")
    got=()
    for signal in "${left[@]}"; do
      [ "$((SECONDS - ${both[$signal]:--9}))" -gt 2 ] || { unset "both[$signal]"; continue; }
      kill -s "$signal" "$script" 2> /dev/null
    done
    ended=$killed
    kill -0 "$1" 2> /dev/null || killed=137
  done
}

# Has finish look what Slurm does while the script may still save: Slurm kills it, and this process, KillWait
# after its SIGTERM, 30 s by default, and a job at its time limit that nobody has requeued by then has ended.
# Each SIGTERM may be that one, as people and --signal=B:TERM send it as well.
look_early() {
  local before=0
  if [ "${#looks[@]}" -gt 0 ]; then
    before=${looks[-1]}
    ! is_to_begin "$before" || return 0
  fi
  ( trap '' "${_he_of_scripts[@]}"
    while [ "$before" != 0 ] && kill -0 "$before"; do sleep 0.5; done 2> /dev/null
    sleep 1
    exec "${_he_elastic[@]}" finish "${_he_finish[@]}" --script-runs
  ) > /dev/null &
  looks+=("$!")
}

is_to_begin() { [ "$(cat "/proc/$1/comm" 2> /dev/null)" = bash ]; }  # $1: a process that looks

# Ends the job. $1: the exit code of the script.
end_script() {
  local code look
  trap '' "${_he_of_scripts[@]}"  # finish inherits that, so Slurm's signals do not kill it
  for look in "${looks[@]}"; do
    ! is_to_begin "$look" || kill -9 "$look"
    wait "$look"
  done 2> /dev/null
  rm -rf -- "$copy"
  run_finish --srun-exit-code="$1" > /dev/null
  code=$?
  exit "$code"
}

# Links the output of this job into the run directory, where `logs` and finish read it. Another file system
# gets a line that names the file.
keep_output() (
  local number name=slurm-${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID:-}}
  [ "$name" != slurm- ] || name+=$SLURM_JOB_ID
  enter_run 2> /dev/null || return
  exec 2> /dev/null
  cd -P -- "$_he_part" || return
  link_output 1 "$name.out"
  [ "/proc/$$/fd/1" -ef "/proc/$$/fd/2" ] || link_output 2 "$name-stderr.out"
)

# Links the file itself that Slurm has opened, whatever has its name by now. $1: the number of a stream of this
# script. $2: the name in the run directory.
link_output() {
  local stream=/proc/$$/fd/$1
  [ ! "$stream" -ef "$2" ] || return 0
  if [ -f "$stream" ]; then
    ln -Lf -- "$stream" "$2" && return
  fi
  rm -f -- "$2"  # it may be the output of an earlier start, under its second name
  echo "the output of this job is in $(readlink "$stream")" > "$2"
}

# --- Before srun --------------------------------------------------------------------------------------------

# $1: the installed copy of this file. It is left out where the node does not have it.
begin_sruns() {
  local functions
  _he_nodes=$SLURM_JOB_NUM_NODES
  _he_epilog=$1
  [ -x "$_he_epilog" ] || _he_epilog=''
  functions=$(declare -f enter_run start_name tell_absent become_agent)
  _he_task=(/bin/bash -p -c "$functions; become_agent \"\$@\"" bash "$_he_epilog")
  start_beside beat
  _he_beats=$!
}

# --- Processes beside srun ----------------------------------------------------------------------------------

# Starts a function as a process that Slurm's signals do not end; it ends with this script.
start_beside() {
  trap '' "${_he_signals[@]}"
  "$@" &
  disown  # bash does not report its end
  listen
  trap 'kill -9 $_he_beats $_he_watcher 2> /dev/null' EXIT
}

# Waits for $1 seconds by reading from a pipe that stays empty, which open_pause has opened: `sleep` would be a
# new process each time.
pause() {
  read -r -t "$1" _ <&"$never"
  [ "$?" -gt 128 ] || sleep "$1"  # it was no timeout: there is no such pipe
}
open_pause() { exec {never}<> <(:); }

# Counts as long as the batch script lives, so that agents can tell the loss of this node from the loss of its
# agent. The shell itself writes into one file: no process, no new name and no rename every two seconds.
beat() {
  local count said trouble=
  enter_run && cd -P -- "$_he_part/nodes" 2> /dev/null || return  # -P: from the directory that was checked
  open_pause
  rm -f batch.beat  # if it is a link, nothing is written to what it names
  exec 3>&2 2> /dev/null
  for ((count = 1; ; count++)); do
    said=
    echo "$count" > batch.beat || said=$({ echo "$count" > batch.beat; } 2>&1)
    if [ "$said" != "$trouble" ]; then  # once when it begins, as on a full disk, and once when it is over
      echo "sign of life of this script: ${said:-written again}" >&3
      trouble=$said
    fi
    pause 2
    kill -0 $$ || return
  done
}

# Slurm can lose the message that an agent has ended (22.05 does where its node is cut off for some seconds
# just then). Then srun waits until the time limit. Agents that live change their names in members/ all the
# time, so srun is killed when no name has changed for $1 seconds, or for $2 seconds while an agent that has
# not told its name may still be looking at its node.
watch_srun() {
  start_beside end_silent_srun "$(start_name)" "$@"
  _he_watcher=$!
}

end_silent_srun() {  # $1: the start of the job, as the names tell it; $2, $3: the seconds
  local silent=0 names before=
  enter_run && cd -P members 2> /dev/null || return
  open_pause
  shopt -s nullglob
  until [ "$silent" -ge "$3" ] || { [ "$silent" -ge "$2" ] && all_have_come "${names[@]}"; }; do
    pause 30
    kill -0 $$ 2> /dev/null || return
    names=(*"+$1+"*)
    if [ "${names[*]}" = "$before" ]; then
      # The listing may be an old one. On NFS a client that changes a directory sees what others have changed
      # in it; where the directory cannot be changed, nothing is concluded.
      { : > .look && rm .look; } 2> /dev/null || continue
      names=(*"+$1+"*)
    fi
    [ "${#names[@]}" -gt 0 ] || continue  # no agent has told its name yet
    if [ "${names[*]}" = "$before" ]; then silent=$((silent + 30)); else silent=0; fi
    before=${names[*]}
  done
  echo "hpc_elastic: no agent has given a sign of life for $silent s, but srun waits for one:" \
    "srun is killed" >&2
  kill_srun
}

all_have_come() {  # whether the names NODE.PID+... are those of as many nodes as srun uses
  local name
  local -A found=()
  for name; do
    name=${name%%+*}
    found[${name%.*}]=1
  done
  [ "${#found[@]}" -ge "$_he_nodes" ]
}

kill_srun() {
  local process command parent
  for process in /proc/[0-9]*; do
    read -r _ command _ parent _ < "$process/stat" || continue
    [ "$command $parent" != "(srun) $$" ] || kill -9 "${process#/proc/}"
  done 2> /dev/null
}

# --- On each node, around its agent -------------------------------------------------------------------------

# All agents of a start wait for each other. One that ends before it has told its name would be waited for
# until the join timeout, so somebody else tells the others that it will not come:
# - Slurm runs this file on each node after the agent (srun --task-epilog), by the path of the installed copy.
# - Where Python's file system is away, so is that copy. So each task of srun begins as a shell which has the
#   functions of this section, and tells it itself if it cannot become the agent.

become_agent() {  # $1: the epilog, then the command of the agent, which takes the place of this shell
  shopt -s execfail
  set +o privileged  # only this shell is to read no start-up file
  local _he_epilog=$1 _he_code=126  # the command gets the variables of its user, whatever their names
  shift
  if [ -z "$_he_epilog" ] || [ -x "$_he_epilog" ]; then
    exec "$@"
    _he_code=$?
  else
    echo "hpc_elastic: ${_he_epilog%/*} is not there on $SLURMD_NODENAME, so no agent is started" >&2
  fi
  tell_absent
  exit "$_he_code"
}

tell_absent() {
  local start
  enter_run && cd -P members 2> /dev/null || return
  start=$(start_name)
  set -o noclobber
  for _ in 1 2 3 4; do  # the disk may have room a moment later
    compgen -G "$SLURMD_NODENAME.*+$start+*" > /dev/null && return  # the agent has told its name
    : > "$SLURMD_NODENAME.0+$start+absent+0+0+0" && return
    sleep 1
  done 2> /dev/null
}

# Removes what this user's agents have left in the memory of this node: Slurm kills an agent together with its
# guard, and a state that workers have kept may be large. An agent that lives holds a lock on its directory.
# The next agent does the same (`remove_left` in hpc_elastic/start/scratch.py, with the same names): it looks
# into the user's folder and, where another user had taken the name of that, at few entries beside it.
# Nothing is removed by a path: another user can exchange each name in a place where all can write.
# $1: where agents make their directories.
remove_left() (
  exec 2> /dev/null
  LC_ALL=C
  shopt -s dotglob nullglob
  folder=hpc_elastic-$EUID
  cd -P -- "$1" && place=$(readlink /proc/self/cwd) || return
  looked_at=0
  while [ "$((looked_at++))" -lt 1000 ] && IFS= read -r -d '' name; do
    [[ $name =~ ^"$folder"-$_he_of_agent$ ]] && is_dead "${BASH_REMATCH[1]}" && remove_own "$name" "$place"
  done < <(find . -mindepth 1 -maxdepth 1 -printf '%f\0')
  enter_own "$folder" "$place" || return
  printf -v now '%(%s)T' -1
  for name in *; do
    if [[ $name =~ ^$_he_of_agent$ ]]; then
      is_dead "${BASH_REMATCH[1]}" || continue
    elif [[ $name =~ ^$_he_of_kept$ ]]; then
      [ "${BASH_REMATCH[1]}" -gt "$now" ] || [ "$now" -ge "${BASH_REMATCH[2]}" ] || continue
    else
      continue
    fi
    remove_own "$name" "$place/$folder"
  done
  cd -P .. && rmdir -- "$folder"
)

# The names of agents' directories: with the number of the process, or kept from one second until another for
# the next start of the run.
_he_of_agent='([0-9]+)-[0-9a-f]{8}'
_he_of_kept='kept-([0-9]{1,18})-([0-9]{1,18})-[0-9a-f]{8}'

is_dead() { [ ! -e "/proc/$1" ]; }

# Changes into a directory that is this user's alone, through no link. $1: its name. $2: the directory above.
enter_own() {
  local found
  cd -P -- "./$1" && found=$(readlink /proc/self/cwd && stat -c '%u %A' .) || return
  [[ $found == "$2/$1"$'\n'"$EUID d"????-??-* ]]
}

remove_own() {  # as enter_own; has only files
  (enter_own "$@" && flock -n . rm -f -- *) && rmdir -- "$1"
}

# Slurm has started this file itself, as the epilog of a task. Slurm would tell people of an exit code that is
# not 0.
if [ "${0##*/}" = batch.sh ]; then
  tell_absent
  remove_left /dev/shm
  exit 0
fi
