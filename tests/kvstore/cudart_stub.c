/* A libcudart whose devices are files: as much of the CUDA runtime as the store calls.
 *
 * KVSTORE_CUDA_STUB is a folder. Each allocation is a file there, mapped shared, so that another process can open it by
 * its handle (the file's name). What callers get as an address is not the mapping's but one far off: whoever touches a
 * device's memory other than by a copy dies. Copies wait in their stream until somebody synchronises, as a GPU's may.
 * "log": each call, with the process and its current device. "faults": lines "NAME CODE", read at every call: it fails
 * so. "devices": how many; "hidden": the first so many are invisible; "apart" there: no device reaches another. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define INVALID 1
#define NO_MEMORY 2
#define BAD_HANDLE 400
#define BIAS ((uintptr_t)1 << 56)
#define MOST 256

typedef struct { char name[64]; } handle_t;
typedef struct { char *base; size_t size; char name[64]; int theirs, uses; } piece_t;
typedef struct { void *to; const void *from; size_t to_pitch, from_pitch, width, rows; } copy_t;
typedef struct { copy_t *copies; int count, room; } stream_t;

static piece_t pieces[MOST];
static stream_t *streams[MOST];
static int stream_count, allocations;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int current;

static const char *place(const char *name, char *path, size_t size) {
    const char *folder = getenv("KVSTORE_CUDA_STUB");
    snprintf(path, size, "%s/%s", folder ? folder : "/dev/null", name); /* a test that is over has none any more */
    return path;
}

static int number_in(const char *name, int otherwise) {
    char path[512];
    FILE *file = fopen(place(name, path, sizeof path), "r");
    int value = otherwise;
    if (file) {
        if (fscanf(file, "%d", &value) != 1) value = otherwise;
        fclose(file);
    }
    return value;
}

static void say(const char *what) {
    char path[512], line[256];
    int fd = open(place("log", path, sizeof path), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    int n = snprintf(line, sizeof line, "%d %d %s\n", (int)getpid(), current, what);
    if (fd >= 0) {
        if (write(fd, line, n) != n) abort();
        close(fd);
    }
}

/* Log the call; the code that it is to fail with, or 0. */
static int begun(const char *name) {
    char path[512], word[128];
    int code = 0, wanted = 0;
    FILE *file = fopen(place("faults", path, sizeof path), "r");
    while (file && fscanf(file, "%127s %d", word, &wanted) == 2)
        if (!strcmp(word, name)) code = wanted;
    if (file) fclose(file);
    say(name);
    return code;
}

#define BEGIN(name) do { int code_ = begun(name); if (code_) return code_; } while (0)

static piece_t *piece_at(const void *address, size_t size) {
    uintptr_t at = (uintptr_t)address - BIAS;
    for (int i = 0; i < MOST; i++)
        if (pieces[i].base && at >= (uintptr_t)pieces[i].base && at + size <= (uintptr_t)pieces[i].base + pieces[i].size)
            return &pieces[i];
    return NULL;
}

/* Where the bytes are: host memory as it is, a device's by its mapping; NULL outside of it. */
static char *bytes_at(const void *address, size_t size) {
    if ((uintptr_t)address < BIAS) return (char *)address;
    return piece_at(address, size) ? (char *)((uintptr_t)address - BIAS) : NULL;
}

static int mapped(const char *name, size_t size, int theirs, void **out) {
    char path[512];
    struct stat found;
    int fd = open(place(name, path, sizeof path), theirs ? O_RDWR : O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0) return theirs ? BAD_HANDLE : NO_MEMORY;
    if (!theirs && ftruncate(fd, size)) return NO_MEMORY;
    if (fstat(fd, &found)) return INVALID;
    piece_t *free_one = NULL;
    for (int i = 0; i < MOST && !free_one; i++)
        if (!pieces[i].base) free_one = &pieces[i];
    void *base = mmap(NULL, found.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (!free_one || base == MAP_FAILED) return NO_MEMORY;
    *free_one = (piece_t){.base = base, .size = found.st_size, .theirs = theirs, .uses = 1};
    snprintf(free_one->name, sizeof free_one->name, "%s", name);
    *out = (char *)base + BIAS;
    return 0;
}

static void marker(const char *name, int pid, char *path, size_t size) {
    char word[128];
    snprintf(word, sizeof word, "%s.open.%d", name, pid);
    place(word, path, size);
}

/* Whether a living process has this file open by its handle. */
static int open_elsewhere(const char *name) {
    char prefix[128];
    int found = 0;
    snprintf(prefix, sizeof prefix, "%s.open.", name);
    const char *where = getenv("KVSTORE_CUDA_STUB");
    DIR *folder = where ? opendir(where) : NULL;
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        if (!strncmp(entry->d_name, prefix, strlen(prefix)) && !kill(atoi(entry->d_name + strlen(prefix)), 0)) found = 1;
    if (folder) closedir(folder);
    return found;
}

static void gone(piece_t *piece) {
    munmap(piece->base, piece->size);
    memset(piece, 0, sizeof *piece);
}

int cudaGetDeviceCount(int *count) {
    BEGIN("cudaGetDeviceCount");
    *count = number_in("devices", 2) - number_in("hidden", 0);
    return *count > 0 ? 0 : 100;
}

int cudaGetDevice(int *device) { *device = current; return 0; }

int cudaSetDevice(int device) {
    BEGIN("cudaSetDevice");
    if (device < 0 || device >= number_in("devices", 2) - number_in("hidden", 0)) return 101;
    current = device;
    return 0;
}

int cudaDeviceGetPCIBusId(char *text, int size, int device) {
    snprintf(text, size, "0000:%02X:00.0", 0x1a + device + number_in("hidden", 0));
    return 0;
}

int cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    BEGIN("cudaDeviceCanAccessPeer");
    char path[512];
    *can = device != peer && access(place("apart", path, sizeof path), F_OK) != 0;
    return 0;
}

int cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    static int enabled[16][16];
    BEGIN("cudaDeviceEnablePeerAccess");
    if (flags || peer == current) return INVALID;
    return enabled[current][peer]++ ? 704 : 0;
}

int cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    BEGIN("cudaMemGetInfo");
    *total = (size_t)1 << 30;
    *free_bytes = *total / 2;
    return 0;
}

int cudaMalloc(void **out, size_t size) {
    BEGIN("cudaMalloc");
    char name[64];
    if (size > (size_t)1 << 30) return NO_MEMORY;
    pthread_mutex_lock(&lock);
    snprintf(name, sizeof name, "memory-%d-%d", (int)getpid(), allocations++);
    int code = mapped(name, size, 0, out);
    if (!code) memset((char *)*out - BIAS, 0xA5, size); /* nobody may take it for zeros */
    pthread_mutex_unlock(&lock);
    return code;
}

int cudaFree(void *address) {
    BEGIN("cudaFree");
    char path[512];
    pthread_mutex_lock(&lock);
    piece_t *piece = piece_at(address, 1);
    int code = piece && !piece->theirs && (char *)address - BIAS == piece->base ? 0 : INVALID;
    if (!code) {
        if (open_elsewhere(piece->name)) say("FREED-WHILE-OPEN");
        unlink(place(piece->name, path, sizeof path));
        gone(piece);
    }
    pthread_mutex_unlock(&lock);
    return code;
}

int cudaHostAlloc(void **out, size_t size, unsigned flags) {
    BEGIN("cudaHostAlloc");
    (void)flags;
    *out = malloc(size);
    return *out ? 0 : NO_MEMORY;
}

int cudaFreeHost(void *address) {
    BEGIN("cudaFreeHost");
    free(address);
    return 0;
}

int cudaIpcGetMemHandle(handle_t *handle, void *address) {
    BEGIN("cudaIpcGetMemHandle");
    pthread_mutex_lock(&lock);
    piece_t *piece = piece_at(address, 1);
    if (piece && !piece->theirs) memcpy(handle->name, piece->name, sizeof handle->name);
    pthread_mutex_unlock(&lock);
    return piece && !piece->theirs ? 0 : INVALID;
}

int cudaIpcOpenMemHandle(void **out, handle_t handle, unsigned flags) {
    BEGIN("cudaIpcOpenMemHandle");
    char path[512];
    if (flags != 1 || !memchr(handle.name, 0, sizeof handle.name) || strncmp(handle.name, "memory-", 7)) return BAD_HANDLE;
    pthread_mutex_lock(&lock);
    int code = 0;
    piece_t *known = NULL;
    for (int i = 0; i < MOST && !known; i++)
        if (pieces[i].base && !strcmp(pieces[i].name, handle.name)) known = &pieces[i];
    if (known && !known->theirs) code = 201; /* one's own */
    else if (known) known->uses++, *out = known->base + BIAS;
    else if (!(code = mapped(handle.name, 0, 1, out))) {
        marker(handle.name, getpid(), path, sizeof path);
        int fd = open(path, O_CREAT | O_WRONLY, 0600);
        if (fd >= 0) close(fd);
    }
    pthread_mutex_unlock(&lock);
    return code;
}

int cudaIpcCloseMemHandle(void *address) {
    BEGIN("cudaIpcCloseMemHandle");
    char path[512];
    pthread_mutex_lock(&lock);
    piece_t *piece = piece_at(address, 1);
    int code = piece && piece->theirs ? 0 : INVALID;
    if (!code && !--piece->uses) {
        marker(piece->name, getpid(), path, sizeof path);
        unlink(path);
        gone(piece);
    }
    pthread_mutex_unlock(&lock);
    return code;
}

int cudaStreamCreateWithFlags(void **stream, unsigned flags) {
    BEGIN("cudaStreamCreateWithFlags");
    (void)flags;
    pthread_mutex_lock(&lock);
    *stream = streams[stream_count++] = calloc(1, sizeof(stream_t));
    pthread_mutex_unlock(&lock);
    return 0;
}

static int drained(stream_t *stream) {
    int code = 0;
    for (int i = 0; i < stream->count; i++) {
        copy_t *copy = &stream->copies[i];
        char *to = bytes_at(copy->to, (copy->rows - 1) * copy->to_pitch + copy->width);
        char *from = bytes_at(copy->from, (copy->rows - 1) * copy->from_pitch + copy->width);
        if (!to || !from) code = 700; /* gone since it was posted */
        for (size_t row = 0; to && from && row < copy->rows; row++)
            memmove(to + row * copy->to_pitch, from + row * copy->from_pitch, copy->width);
    }
    stream->count = 0;
    return code;
}

int cudaStreamSynchronize(void *stream) {
    int fault = begun("cudaStreamSynchronize");
    pthread_mutex_lock(&lock);
    int code = stream ? drained(stream) : 0; /* nothing of ours is on the default stream */
    pthread_mutex_unlock(&lock);
    return fault ? fault : code;
}

int cudaDeviceSynchronize(void) {
    BEGIN("cudaDeviceSynchronize");
    pthread_mutex_lock(&lock);
    int code = 0;
    for (int i = 0; i < stream_count && !code; i++) code = drained(streams[i]);
    pthread_mutex_unlock(&lock);
    return code;
}

static int post(stream_t *stream, copy_t copy) {
    int code = 0;
    pthread_mutex_lock(&lock);
    if (!bytes_at(copy.to, (copy.rows - 1) * copy.to_pitch + copy.width)) code = INVALID;
    if (!bytes_at(copy.from, (copy.rows - 1) * copy.from_pitch + copy.width)) code = INVALID;
    if (!code) {
        if (stream->count == stream->room) {
            stream->room = stream->room ? 2 * stream->room : 64;
            stream->copies = realloc(stream->copies, stream->room * sizeof(copy_t));
        }
        stream->copies[stream->count++] = copy;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
    BEGIN("cudaMemcpyAsync");
    return kind == 4 ? post(stream, (copy_t){to, from, size, size, size, 1}) : INVALID;
}

int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t rows, int kind,
                      void *stream) {
    BEGIN("cudaMemcpy2DAsync");
    if (kind != 4 || width > to_pitch || width > from_pitch) return INVALID;
    return post(stream, (copy_t){to, from, to_pitch, from_pitch, width, rows});
}

int cudaGetLastError(void) { return 0; }

const char *cudaGetErrorString(int code) {
    switch (code) {
    case 0: return "no error";
    case INVALID: return "invalid argument";
    case NO_MEMORY: return "out of memory";
    case 35: return "CUDA driver version is insufficient for CUDA runtime version";
    case 100: return "no CUDA-capable device is detected";
    case 101: return "invalid device ordinal";
    case 201: return "invalid device context";
    case BAD_HANDLE: return "invalid resource handle";
    case 700: return "an illegal memory access was encountered";
    default: return "unknown error";
    }
}
