/* LD_PRELOAD: reads of chunk files fail. For machines whose kernel has no device mapper.

   FAILING_DISK   permille of reads that fail with EIO or end early, by turns; 1000: all of them fail
   FAILING_PATHS  only files whose path contains one of these, separated by spaces; default: all ".chunk" files
   FAILING_UNDER  only files below this folder */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static __thread unsigned long long state;

static int is_chosen(const char *path) {
    const char *under = getenv("FAILING_UNDER"), *names = getenv("FAILING_PATHS");
    char copy[4096], *rest = copy, *name;
    if (!strstr(path, ".chunk") || (under && strncmp(path, under, strlen(under)))) return 0;
    if (!names) return 1;
    snprintf(copy, sizeof copy, "%s", names);
    while ((name = strsep(&rest, " "))) if (*name && strstr(path, name)) return 1;
    return 0;
}

/* 0: read as asked; 1: EIO; 2: only a part. */
static int outcome(int descriptor) {
    const char *share = getenv("FAILING_DISK");
    char link[64], path[4096];
    ssize_t length;
    if (!share) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    if ((length = readlink(link, path, sizeof path - 1)) < 0) return 0;
    path[length] = 0;
    if (!is_chosen(path)) return 0;
    if (!state) state = (unsigned long long)getpid() * 2654435761u + (unsigned long long)(size_t)&state;
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    if ((int)((state >> 33) % 1000) >= atoi(share)) return 0;
    return atoi(share) < 1000 && (state >> 20) % 2 ? 2 : 1;
}

#define PREAD(name)                                                                                                    \
    ssize_t name(int fd, void *buffer, size_t count, off64_t offset) {                                                  \
        ssize_t (*real)(int, void *, size_t, off64_t) = dlsym(RTLD_NEXT, #name);                                        \
        int what = outcome(fd);                                                                                        \
        if (what == 1) { errno = EIO; return -1; }                                                                     \
        return real(fd, buffer, what == 2 ? count / 2 + 1 : count, offset);                                            \
    }

#define PREADV(name)                                                                                                   \
    ssize_t name(int fd, const struct iovec *pieces, int count, off64_t offset) {                                       \
        ssize_t (*real)(int, const struct iovec *, int, off64_t) = dlsym(RTLD_NEXT, #name);                             \
        int what = outcome(fd);                                                                                        \
        if (what == 1) { errno = EIO; return -1; }                                                                     \
        return real(fd, pieces, what == 2 ? 1 : count, offset);                                                        \
    }

#define PREADV2(name)                                                                                                  \
    ssize_t name(int fd, const struct iovec *pieces, int count, off64_t offset, int flags) {                            \
        ssize_t (*real)(int, const struct iovec *, int, off64_t, int) = dlsym(RTLD_NEXT, #name);                        \
        int what = outcome(fd);                                                                                        \
        if (what == 1) { errno = EIO; return -1; }                                                                     \
        return real(fd, pieces, what == 2 ? 1 : count, offset, flags);                                                 \
    }

PREAD(pread)
PREAD(pread64)
PREADV(preadv)
PREADV(preadv64)
PREADV2(preadv2)
PREADV2(preadv64v2)
