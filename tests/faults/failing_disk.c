/* A disk that fails. Preloaded into a process, this counts the calls that change files below one folder, and at a given
   call kills the process, stops it or takes the folder away, or has this call and all later ones fail. Calls that read are counted
   on their own, and one of them may fail. Below Python, so that what libraries do by themselves is met as well. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum action { NOTHING, KILL, STOP, VANISH, FULL, READ_ONLY, UNREADABLE };
enum kind { OPEN, WRITE, SYNC, RENAME, MKDIR, UNLINK, TRUNCATE };

static char below[PATH_MAX];
static enum action action;
static long at;
static pid_t armed;
static atomic_long calls, reads;

void disk_arm(const char *folder, int what, long when) {
    snprintf(below, sizeof below, "%s", folder);
    action = what;
    at = when;
    atomic_store(&calls, 0);
    atomic_store(&reads, 0);
    armed = getpid();
}

long disk_calls(void) { return calls; }
long disk_reads(void) { return reads; }

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int is_below(int folder, const char *path) {
    char found[PATH_MAX], link[64];
    if (armed != getpid()) return 0;  /* nobody asked, or in a child of the process that did */
    if (path && path[0] == '/') return !strncmp(path, below, strlen(below));
    if (folder < 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t size = readlink(link, found, sizeof found - 1);
    if (size < 0) return 0;
    found[size] = 0;
    return !strncmp(found, below, strlen(below));
}

/* One more call. 0, or the error that it has to fail with; *half if a part of it is to be done before it fails or is killed. */
static int meet(enum kind kind, int *half) {
    long number = ++calls;
    if (action == NOTHING || action == UNREADABLE || number < at) return 0;
    if (half) *half = number == at && (action == KILL || action == FULL);
    if (number == at && action == KILL && !(half && *half)) kill(getpid(), SIGKILL);
    if (number == at && action == STOP) raise(SIGSTOP);
    if (number == at && action == VANISH) {
        char gone[PATH_MAX + 8];
        snprintf(gone, sizeof gone, "%s.gone", below);
        REAL(rename)(below, gone);
    }
    if (action == FULL && kind != UNLINK && kind != TRUNCATE) return ENOSPC;
    if (action == READ_ONLY) return kind == WRITE || kind == SYNC ? EIO : EROFS;
    return 0;
}

/* One more call that reads, and whether it has to fail: one does, the next works again. */
static int unreadable(int folder, const char *path) {
    if ((action != NOTHING && action != UNREADABLE) || !is_below(folder, path)) return 0;
    long number = ++reads;
    if (action != UNREADABLE || number != at) return 0;
    errno = EIO;
    return 1;
}

#define FAIL_IF_MET(kind, folder, path, failure)                    \
    int error = is_below(folder, path) ? meet(kind, NULL) : 0;      \
    if (error) { errno = error; return failure; }

#define PATHS(kind, name, parameters, arguments, folder, path)      \
    int name parameters {                                           \
        FAIL_IF_MET(kind, folder, path, -1)                         \
        return REAL(name) arguments;                                \
    }

PATHS(RENAME, rename, (const char *from, const char *to), (from, to), -1, to)
PATHS(RENAME, renameat, (int f, const char *from, int t, const char *to), (f, from, t, to), t, to)
PATHS(MKDIR, mkdir, (const char *path, mode_t mode), (path, mode), -1, path)
PATHS(UNLINK, unlink, (const char *path), (path), -1, path)
PATHS(UNLINK, unlinkat, (int folder, const char *path, int flags), (folder, path, flags), folder, path)
PATHS(UNLINK, rmdir, (const char *path), (path), -1, path)
PATHS(TRUNCATE, truncate, (const char *path, off_t size), (path, size), -1, path)
PATHS(TRUNCATE, truncate64, (const char *path, off64_t size), (path, size), -1, path)
PATHS(TRUNCATE, ftruncate, (int file, off_t size), (file, size), file, NULL)
PATHS(TRUNCATE, ftruncate64, (int file, off64_t size), (file, size), file, NULL)
PATHS(SYNC, fsync, (int file), (file), file, NULL)
PATHS(SYNC, fdatasync, (int file), (file), file, NULL)

#define OPENS(name, parameters, arguments, folder)                  \
    int name parameters {                                           \
        va_list more;                                               \
        va_start(more, flags);                                      \
        mode_t mode = va_arg(more, int);                            \
        va_end(more);                                               \
        if (flags & (O_WRONLY | O_RDWR | O_CREAT)) {                \
            FAIL_IF_MET(OPEN, folder, path, -1)                     \
        } else if (unreadable(folder, path)) {                      \
            return -1;                                              \
        }                                                           \
        return REAL(name) arguments;                                \
    }

OPENS(open, (const char *path, int flags, ...), (path, flags, mode), -1)
OPENS(open64, (const char *path, int flags, ...), (path, flags, mode), -1)
OPENS(openat, (int folder, const char *path, int flags, ...), (folder, path, flags, mode), folder)
OPENS(openat64, (int folder, const char *path, int flags, ...), (folder, path, flags, mode), folder)

#define FOPENS(name)                                                \
    FILE *name(const char *path, const char *mode) {                \
        if (mode[0] != 'r') {                                       \
            FAIL_IF_MET(OPEN, -1, path, NULL)                       \
        }                                                           \
        return REAL(name)(path, mode);                              \
    }

FOPENS(fopen)
FOPENS(fopen64)

/* The first half arrives, and then the process is dead or the disk full. */
#define WRITES(name, parameters, whole, first_half)                 \
    ssize_t name parameters {                                       \
        int half = 0, error = is_below(file, NULL) ? meet(WRITE, &half) : 0; \
        if (half) {                                                 \
            ssize_t done = size > 1 ? REAL(name) first_half : 0;    \
            if (action == KILL) kill(getpid(), SIGKILL);            \
            if (done > 0) return done;                              \
        }                                                           \
        if (error) { errno = error; return -1; }                    \
        return REAL(name) whole;                                    \
    }

WRITES(write, (int file, const void *data, size_t size), (file, data, size), (file, data, size / 2))
WRITES(pwrite, (int file, const void *data, size_t size, off_t to), (file, data, size, to), (file, data, size / 2, to))
WRITES(pwrite64, (int file, const void *data, size_t size, off64_t to), (file, data, size, to), (file, data, size / 2, to))
WRITES(writev, (int file, const struct iovec *data, int size), (file, data, size), (file, data, size / 2))
WRITES(sendfile, (int file, int from, off_t *offset, size_t size), (file, from, offset, size), (file, from, offset, size / 2))
WRITES(sendfile64, (int file, int from, off64_t *offset, size_t size), (file, from, offset, size), (file, from, offset, size / 2))

#define READS(name, parameters, arguments)                          \
    ssize_t name parameters {                                       \
        return unreadable(file, NULL) ? -1 : REAL(name) arguments;  \
    }

READS(read, (int file, void *data, size_t size), (file, data, size))
READS(pread, (int file, void *data, size_t size, off_t from), (file, data, size, from))
READS(pread64, (int file, void *data, size_t size, off64_t from), (file, data, size, from))
