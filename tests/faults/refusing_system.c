/* A system that refuses. Preloaded into a process, this lets it start as many threads and processes as it is told and refuses
   all others with EAGAIN, as a limit on the number of processes does, which root does not have. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

static atomic_long threads = LONG_MAX, processes = LONG_MAX;

void system_arm(long new_threads, long new_processes) {
    threads = new_threads;
    processes = new_processes;
}

/* What the process starts by exec has the same limits. */
__attribute__((constructor)) static void inherit(void) {
    const char *new_threads = getenv("REFUSING_THREADS"), *new_processes = getenv("REFUSING_PROCESSES");
    system_arm(new_threads ? atol(new_threads) : LONG_MAX, new_processes ? atol(new_processes) : LONG_MAX);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define REFUSED(left) (atomic_fetch_sub(&left, 1) <= 0)

int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *argument) {
    return REFUSED(threads) ? EAGAIN : REAL(pthread_create)(thread, how, run, argument);
}

pid_t fork(void) {
    if (!REFUSED(processes)) return REAL(fork)();
    errno = EAGAIN;
    return -1;
}

pid_t vfork(void) { return fork(); }  /* one cannot return through a function of ours from a real one */

#define SPAWNS(name)                                                                                            \
    int name(pid_t *process, const char *path, const posix_spawn_file_actions_t *files, const posix_spawnattr_t *how, \
             char *const *argv, char *const *environment) {                                                     \
        return REFUSED(processes) ? EAGAIN : REAL(name)(process, path, files, how, argv, environment);          \
    }

SPAWNS(posix_spawn)
SPAWNS(posix_spawnp)
