/* A disk that goes bad below one directory, for all programs of a process tree (LD_PRELOAD).
 *
 * BAD_DISK: the directory. BAD_DISK_CONTROL: a file of seven 64-bit numbers that the test shares with all programs:
 * changes seen, the first one that is hit, the one from which on none is (0: never), the error (0: none),
 * the delay [us], the most bytes of a write (0: all), changes hit.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { SEEN, FIRST, END, ERROR, DELAY_US, MOST, HIT, NUMBERS };
static volatile int64_t *control;
static const char *disk;

#define REAL(name) ({ static __typeof__(&name) f; if (!f) f = (__typeof__(&name))dlsym(RTLD_NEXT, #name); f; })

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("BAD_DISK_CONTROL");
    disk = getenv("BAD_DISK");
    if (!path || !disk) return;
    int fd = REAL(open)(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *at = mmap(NULL, NUMBERS * sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED) control = at;
}

static int is_below(const char *path) {
    size_t size = strlen(disk);
    return !strncmp(path, disk, size) && (path[size] == '/' || path[size] == 0);
}

static int is_fd_below(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return 0;
    path[size] = 0;
    return is_below(path);
}

static int is_path_below(int at, const char *path) {
    char whole[PATH_MAX];
    if (path[0] == '/') return is_below(path);
    if (at != AT_FDCWD) return is_fd_below(at);
    return getcwd(whole, sizeof whole) && is_below(whole);
}

/* Count a change, and return whether it is hit. */
static int is_hit(void) {
    int saved = errno;
    int64_t number = __atomic_add_fetch(&control[SEEN], 1, __ATOMIC_SEQ_CST);
    if (!control[FIRST] || number < control[FIRST] || (control[END] && number >= control[END])) return 0;
    __atomic_add_fetch(&control[HIT], 1, __ATOMIC_SEQ_CST);
    if (control[DELAY_US]) {
        struct timespec pause = {control[DELAY_US] / 1000000, control[DELAY_US] % 1000000 * 1000};
        nanosleep(&pause, NULL);
    }
    errno = saved;
    return 1;
}

static int fails(int below) {
    if (!control || !below || !is_hit() || !control[ERROR]) return 0;
    errno = (int)control[ERROR];
    return 1;
}

#define CHANGE(below, call) do { if (fails(control && (below))) return -1; return call; } while (0)

int mkdir(const char *p, mode_t m) { CHANGE(is_path_below(AT_FDCWD, p), REAL(mkdir)(p, m)); }
int mkdirat(int d, const char *p, mode_t m) { CHANGE(is_path_below(d, p), REAL(mkdirat)(d, p, m)); }
int rename(const char *a, const char *b) { CHANGE(is_path_below(AT_FDCWD, b), REAL(rename)(a, b)); }
int renameat(int d, const char *a, int e, const char *b) { CHANGE(is_path_below(e, b), REAL(renameat)(d, a, e, b)); }
int link(const char *a, const char *b) { CHANGE(is_path_below(AT_FDCWD, b), REAL(link)(a, b)); }
int linkat(int d, const char *a, int e, const char *b, int f) {
    CHANGE(is_path_below(e, b), REAL(linkat)(d, a, e, b, f));
}
int fsync(int fd) { CHANGE(is_fd_below(fd), REAL(fsync)(fd)); }
int fdatasync(int fd) { CHANGE(is_fd_below(fd), REAL(fdatasync)(fd)); }

#define OPEN(name) \
    int name(const char *p, int flags, ...) { \
        va_list rest; va_start(rest, flags); int mode = va_arg(rest, int); va_end(rest); \
        CHANGE((flags & O_CREAT) && is_path_below(AT_FDCWD, p), REAL(name)(p, flags, mode)); \
    }
#define OPENAT(name) \
    int name(int d, const char *p, int flags, ...) { \
        va_list rest; va_start(rest, flags); int mode = va_arg(rest, int); va_end(rest); \
        CHANGE((flags & O_CREAT) && is_path_below(d, p), REAL(name)(d, p, flags, mode)); \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

/* Write what the disk takes: all, a part, or an error. */
ssize_t write(int fd, const void *data, size_t size) {
    if (control && is_fd_below(fd) && is_hit()) {
        if (control[ERROR]) { errno = (int)control[ERROR]; return -1; }
        if (control[MOST] && (int64_t)size > control[MOST]) size = (size_t)control[MOST];
    }
    return REAL(write)(fd, data, size);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (control && is_fd_below(fd) && is_hit()) {
        if (control[ERROR]) { errno = (int)control[ERROR]; return -1; }
        if (control[MOST] && count > 0) count = 1;
    }
    return REAL(writev)(fd, parts, count);
}
