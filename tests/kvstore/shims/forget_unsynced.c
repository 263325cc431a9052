/* Preload shim: a disk that forgets whatever was not synced.
 *
 * Files under FORGET_DIRECTORY work as usual. Beside them the shim keeps a mirror, FORGET_MIRROR, of what a power cut would
 * leave: `f-<inode>` holds the bytes of a file that were synced, `names` the directory's entries as of its last fsync.
 * Written ranges reach the mirror when fdatasync or fsync of the file is called; the size with them; names when the
 * directory is synced. A kill in the midst of that copy leaves a torn write, as a power cut does.
 *
 *   FORGET_LEAK=P      each 512-byte sector of a write reaches the mirror at once with probability P/100: a disk may also
 *                      have written what nobody synced, in any order
 *   FORGET_DELAY_MS=N  an fdatasync takes N milliseconds before its data count
 *   FORGET_FAIL=N      the Nth fdatasync, and every later one, fails with EIO
 *
 * Not seen: mmap, O_DSYNC, and directories below the watched one. An inode number is not used again while the process
 * lives: removed files are kept open. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define MAX_FD 4096
#define SECTOR 512

struct range { ino_t inode; off_t offset; off_t length; };

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static char kind_of[MAX_FD];               /* 0 not ours, 'f' file, 'd' directory */
static ino_t inode_of[MAX_FD];
static struct range *dirty;
static size_t dirty_count, dirty_room;
static const char *directory, *mirror;
static char real_directory[PATH_MAX];
static int leak, delay, fail_at, syncs;
static unsigned seed = 1;

__attribute__((constructor)) static void begin(void) {
    directory = getenv("FORGET_DIRECTORY");
    mirror = getenv("FORGET_MIRROR");
    if (!directory || !mirror || !realpath(directory, real_directory)) { directory = NULL; return; }
    leak = getenv("FORGET_LEAK") ? atoi(getenv("FORGET_LEAK")) : 0;
    delay = getenv("FORGET_DELAY_MS") ? atoi(getenv("FORGET_DELAY_MS")) : 0;
    fail_at = getenv("FORGET_FAIL") ? atoi(getenv("FORGET_FAIL")) : 0;
    seed = (unsigned)getpid();
}

static int mirror_file(ino_t inode) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/f-%lu", mirror, (unsigned long)inode);
    return REAL(open)(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
}

static void note_open(int descriptor) {
    if (!directory || descriptor < 0 || descriptor >= MAX_FD) return;
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    struct stat found;
    kind_of[descriptor] = 0;
    if (length <= 0 || fstat(descriptor, &found)) return;
    path[length] = 0;
    if (!strcmp(path, real_directory)) kind_of[descriptor] = 'd';
    else if (!strncmp(path, real_directory, strlen(real_directory)) && path[strlen(real_directory)] == '/'
             && S_ISREG(found.st_mode)) kind_of[descriptor] = 'f';
    inode_of[descriptor] = found.st_ino;
}

static int ours(int descriptor, char kind) {
    return directory && descriptor >= 0 && descriptor < MAX_FD && kind_of[descriptor] == kind;
}

static int readable(int descriptor) { /* the same file, also where it was opened for writing only */
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    int found = REAL(open)(path, O_RDONLY | O_CLOEXEC);
    if (found < 0) abort();
    return found;
}

static void copy(int from, int to, off_t offset, off_t length) {
    char chunk[65536];
    while (length > 0) {
        ssize_t got = REAL(pread64)(from, chunk, length < (off_t)sizeof chunk ? (size_t)length : sizeof chunk, offset);
        if (got < 0) abort();
        if (got == 0) return;
        if (REAL(pwrite64)(to, chunk, (size_t)got, offset) != got) abort();
        offset += got;
        length -= got;
    }
}

static void note_write(int descriptor, off_t offset, ssize_t length) {
    if (length <= 0 || !ours(descriptor, 'f')) return;
    pthread_mutex_lock(&guard);
    if (dirty_count == dirty_room) {
        dirty_room = dirty_room ? 2 * dirty_room : 256;
        dirty = realloc(dirty, dirty_room * sizeof *dirty);
        if (!dirty) abort();
    }
    dirty[dirty_count++] = (struct range){inode_of[descriptor], offset, length};
    if (leak) {
        int from = readable(descriptor), to = mirror_file(inode_of[descriptor]);
        for (off_t at = offset - offset % SECTOR; at < offset + length; at += SECTOR)
            if (rand_r(&seed) % 100 < leak) copy(from, to, at, SECTOR);
        REAL(close)(from);
        REAL(close)(to);
    }
    pthread_mutex_unlock(&guard);
}

static void sync_file(int descriptor) {
    ino_t inode = inode_of[descriptor];
    struct stat found;
    pthread_mutex_lock(&guard);
    int from = readable(descriptor), to = mirror_file(inode);
    if (to < 0 || fstat(descriptor, &found)) abort();
    if (ftruncate(to, found.st_size)) abort();
    size_t kept = 0;
    for (size_t i = 0; i < dirty_count; i++) {
        if (dirty[i].inode == inode) copy(from, to, dirty[i].offset, dirty[i].length);
        else dirty[kept++] = dirty[i];
    }
    dirty_count = kept;
    REAL(close)(from);
    REAL(close)(to);
    pthread_mutex_unlock(&guard);
}

static void sync_names(void) {
    char path[PATH_MAX], making[PATH_MAX];
    struct dirent *entry;
    snprintf(path, sizeof path, "%s/names", mirror);
    snprintf(making, sizeof making, "%s/names.making", mirror);
    pthread_mutex_lock(&guard);
    DIR *open_directory = opendir(real_directory);
    FILE *out = fopen(making, "we");
    if (!open_directory || !out) abort();
    while ((entry = readdir(open_directory)))
        if (entry->d_name[0] != '.') fprintf(out, "%s %lu\n", entry->d_name, (unsigned long)entry->d_ino);
    fclose(out);
    closedir(open_directory);
    if (REAL(rename)(making, path)) abort();
    pthread_mutex_unlock(&guard);
}

static int sync_any(int descriptor) {
    if (ours(descriptor, 'f')) sync_file(descriptor);
    else sync_names();
    return 0;
}

int fsync(int fd) { return ours(fd, 'f') || ours(fd, 'd') ? sync_any(fd) : REAL(fsync)(fd); }
int fdatasync(int fd) {
    if (!ours(fd, 'f')) return REAL(fdatasync)(fd);
    if (fail_at && ++syncs >= fail_at) { errno = EIO; return -1; }
    if (delay) {
        struct timespec left = {delay / 1000, (delay % 1000) * 1000000L};
        while (nanosleep(&left, &left)) { }
    }
    return sync_any(fd);
}

static void keep_inode(int at, const char *path) { /* so that its number is not used again */
    if (directory) { int kept = REAL(openat)(at, path, O_PATH | O_CLOEXEC); (void)kept; }
}

int rename(const char *from, const char *to) { keep_inode(AT_FDCWD, to); return REAL(rename)(from, to); }
int unlink(const char *path) { keep_inode(AT_FDCWD, path); return REAL(unlink)(path); }

#define OPENER(name, at_parameter, at_argument)                                                     \
    int name(at_parameter const char *path, int flags, ...) {                                       \
        va_list rest;                                                                               \
        va_start(rest, flags);                                                                      \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                     \
        va_end(rest);                                                                               \
        int descriptor = REAL(name)(at_argument path, flags, mode);                                 \
        note_open(descriptor);                                                                      \
        return descriptor;                                                                          \
    }
#define AT_PARAMETER int at,
#define AT_ARGUMENT at,
OPENER(open, , )
OPENER(open64, , )
OPENER(openat, AT_PARAMETER, AT_ARGUMENT)
OPENER(openat64, AT_PARAMETER, AT_ARGUMENT)

int close(int fd) {
    if (directory && fd >= 0 && fd < MAX_FD) kind_of[fd] = 0;
    return REAL(close)(fd);
}

#define NOTED(name, parameters, arguments, start)                                                   \
    ssize_t name parameters {                                                                       \
        off_t from = start;                                                                         \
        ssize_t done = REAL(name) arguments;                                                        \
        note_write(fd, from, done);                                                                 \
        return done;                                                                                \
    }
#define HERE_NOW (ours(fd, 'f') ? lseek(fd, 0, SEEK_CUR) : 0)
NOTED(write, (int fd, const void *data, size_t size), (fd, data, size), HERE_NOW)
NOTED(writev, (int fd, const struct iovec *iov, int count), (fd, iov, count), HERE_NOW)
NOTED(pwrite, (int fd, const void *data, size_t size, off_t offset), (fd, data, size, offset), offset)
NOTED(pwrite64, (int fd, const void *data, size_t size, off64_t offset), (fd, data, size, offset), offset)
NOTED(pwritev, (int fd, const struct iovec *iov, int count, off_t offset), (fd, iov, count, offset), offset)
NOTED(pwritev64, (int fd, const struct iovec *iov, int count, off64_t offset), (fd, iov, count, offset), offset)
NOTED(pwritev2, (int fd, const struct iovec *iov, int count, off_t offset, int flags), (fd, iov, count, offset, flags), offset)
NOTED(pwritev64v2, (int fd, const struct iovec *iov, int count, off64_t offset, int flags), (fd, iov, count, offset, flags), offset)
