/* Preload shim of the lab's wal-stall: every fdatasync and fsync first sleeps KV_SLOW_FDATASYNC_MS milliseconds
 * (a decimal number; unset, zero or not a number: no delay). The flush itself is then done as usual.
 * The delay is read at every call, from a file when KV_SLOW_FDATASYNC_FILE names one, so that it can change in mid-run. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef int (*sync_function)(int);

static double delay_ms(void) {
    const char *path = getenv("KV_SLOW_FDATASYNC_FILE");
    if (path && *path) {
        FILE *file = fopen(path, "re");
        double value = 0;
        if (file) {
            if (fscanf(file, "%lf", &value) != 1) value = 0;
            fclose(file);
        }
        return value;
    }
    const char *text = getenv("KV_SLOW_FDATASYNC_MS");
    return text ? strtod(text, NULL) : 0;
}

static void hold_up(void) {
    double ms = delay_ms();
    if (!(ms > 0)) return;
    struct timespec left = {(time_t)(ms / 1000), (long)((ms - 1000 * (double)(long)(ms / 1000)) * 1e6)};
    while (nanosleep(&left, &left) != 0) { }
}

static int after_delay(const char *name, int descriptor) {
    sync_function real = (sync_function)dlsym(RTLD_NEXT, name);
    hold_up();
    return real(descriptor);
}

int fdatasync(int descriptor) { return after_delay("fdatasync", descriptor); }
int fsync(int descriptor) { return after_delay("fsync", descriptor); }
