/* A libnvidia-ml.so.1 that says what a text file tells it to: one "key value" a line, read anew at every call.
 *
 * A key is a function's name without "nvml", with ".ARGUMENT" where the function takes one, and with "@DEVICE" where a
 * line is for one device only; the narrower key wins. A value is a number, or "!CODE" (that NVML error), "hang" (never
 * returns) or "crash". A function that no line names answers 3, NVML_ERROR_NOT_SUPPORTED. Field values have keys
 * "field.ID" or "field.ID.SCOPE", GPM metrics "gpm.ID" or, of a GPU instance, "gpm.ID.INSTANCE". "lost_after@DEVICE N": from the
 * device's Nth call on it is lost. "calls PATH": each call is logged there.
 * Structures are those of nvml.h, as far as they are used. */
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUCCESS 0
#define INSUFFICIENT_SIZE 7
#define LOST 15
#define UNSUPPORTED 3
#define TIMEOUT 10
#define DEVICES 16
#define INSTANCES 8

typedef struct { int index, instance; } device_t; /* instance -1: the whole device */
typedef struct { int device, instance; double taken; } sample_t;
typedef struct { unsigned total; } set_t;

static device_t whole[DEVICES], parts[DEVICES][INSTANCES];
static long calls[DEVICES];
static int initialised;

/* The value of the narrowest key there is: 1 and the text, or 0. */
static int line_of(const char *key, char *value, size_t size) {
    const char *path = getenv("KVSCOPE_NVML_STUB");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512];
    size_t length = strlen(key);
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, key, length) && line[length] == ' ') {
            snprintf(value, size, "%s", line + length + 1);
            found = 1;
        }
    }
    if (file) fclose(file);
    return found;
}

static int find(int device, char *value, size_t size, const char *stem, const char *argument) {
    char key[256];
    for (int narrow = argument ? 1 : 0; narrow >= 0; narrow--)
        for (int own = device >= 0 ? 1 : 0; own >= 0; own--) {
            int n = snprintf(key, sizeof key, "%s%s%s", stem, narrow ? "." : "", narrow ? argument : "");
            if (own) snprintf(key + n, sizeof key - n, "@%d", device);
            if (line_of(key, value, size)) return 1;
        }
    return 0;
}

static int acted(const char *value) {
    if (!strcmp(value, "hang")) for (;;) pause();
    if (!strcmp(value, "crash")) raise(SIGSEGV);
    return value[0] == '!' ? atoi(value + 1) : SUCCESS;
}

static void log_call(const char *name, int device) {
    char path[512];
    if (!line_of("calls", path, sizeof path)) return;
    FILE *file = fopen(path, "a");
    if (file) fprintf(file, "%s@%d\n", name, device), fclose(file);
}

/* What the file says to one question: an NVML error, or SUCCESS and the text. */
static int asked(int device, char *value, size_t size, const char *name, const char *argument) {
    log_call(name, device);
    if (!initialised) return 1;
    if (line_of("driver", value, size)) { int code = acted(value); if (code) return code; }
    if (device >= 0) {
        calls[device]++;
        if (find(device, value, size, "lost_after", NULL) && calls[device] >= atol(value)) return LOST;
    }
    if (!find(device, value, size, name, argument)) return UNSUPPORTED;
    return acted(value);
}

static int number(device_t *d, unsigned long long *out, const char *name, int argument) {
    char value[512], text[32];
    snprintf(text, sizeof text, "%d", argument);
    int code = asked(d ? d->index : -1, value, sizeof value, name, argument < 0 ? NULL : text);
    if (code == SUCCESS) *out = value[0] == '-' ? (unsigned long long)strtoll(value, NULL, 0) : strtoull(value, NULL, 0);
    return code;
}

static int words(device_t *d, char *out, unsigned size, const char *name) {
    char value[512];
    int code = asked(d ? d->index : -1, value, sizeof value, name, NULL);
    if (code == SUCCESS) snprintf(out, size, "%s", value);
    return code;
}

#define U32(NAME) int nvml##NAME(device_t *d, unsigned *out) { \
    unsigned long long v; int c = number(d, &v, #NAME, -1); if (!c) *out = (unsigned)v; return c; }
#define U32_OF(NAME) int nvml##NAME(device_t *d, unsigned argument, unsigned *out) { \
    unsigned long long v; int c = number(d, &v, #NAME, (int)argument); if (!c) *out = (unsigned)v; return c; }
#define U64(NAME) int nvml##NAME(device_t *d, unsigned long long *out) { return number(d, out, #NAME, -1); }

U32(DeviceGetMinorNumber) U32(DeviceGetPowerUsage) U32(DeviceGetEnforcedPowerLimit) U32(DeviceGetPerformanceState)
U32(DeviceGetCurrPcieLinkGeneration) U32(DeviceGetMaxPcieLinkGeneration) U32(DeviceGetCurrPcieLinkWidth)
U32(DeviceGetMaxPcieLinkWidth) U32(DeviceGetPcieReplayCounter) U32(DeviceGetMaxMigDeviceCount)
U32_OF(DeviceGetClockInfo) U32_OF(DeviceGetMaxClockInfo) U32_OF(DeviceGetTemperature)
U32_OF(DeviceGetTemperatureThreshold) U32_OF(DeviceGetPcieThroughput) U32_OF(DeviceGetNvLinkState)
U64(DeviceGetCurrentClocksEventReasons) U64(DeviceGetTotalEnergyConsumption) U64(DeviceGetSupportedEventTypes)

int nvmlInitWithFlags(unsigned flags) {
    char value[512];
    (void)flags;
    for (int i = 0; i < DEVICES; i++) {
        whole[i] = (device_t){i, -1};
        for (int j = 0; j < INSTANCES; j++) parts[i][j] = (device_t){i, j};
    }
    initialised = 1;
    int code = asked(-1, value, sizeof value, "Init", NULL);
    return code == UNSUPPORTED && !line_of("Init", value, sizeof value) ? SUCCESS : code;
}
int nvmlShutdown(void) { return SUCCESS; }
/* "error TEXT" */
const char *nvmlErrorString(int code) {
    static char text[64];
    if (code == SUCCESS) return "Success";
    return line_of("error", text, sizeof text) ? text : "an error of the stub";
}
int nvmlSystemGetDriverVersion(char *out, unsigned size) { return words(NULL, out, size, "SystemGetDriverVersion"); }
int nvmlDeviceGetCount_v2(unsigned *out) {
    unsigned long long v;
    int code = number(NULL, &v, "DeviceGetCount", -1);
    if (!code) *out = (unsigned)v;
    return code;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t **out) {
    char value[512];
    int code = asked((int)index, value, sizeof value, "DeviceGetHandleByIndex", NULL);
    *out = &whole[index];
    return code == UNSUPPORTED && !find((int)index, value, sizeof value, "DeviceGetHandleByIndex", NULL) ? SUCCESS : code;
}
int nvmlDeviceGetUUID(device_t *d, char *out, unsigned size) { return words(d, out, size, "DeviceGetUUID"); }
int nvmlDeviceGetName(device_t *d, char *out, unsigned size) {
    return words(d, out, size, d->instance < 0 ? "DeviceGetName" : "MigGetName");
}

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char busId[32]; } pci_t;
int nvmlDeviceGetPciInfo_v3(device_t *d, pci_t *out) {
    memset(out, 0, sizeof *out);
    return words(d, out->busId, sizeof out->busId, "DeviceGetPciInfo");
}

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_t;
int nvmlDeviceGetMemoryInfo_v2(device_t *d, memory_t *out) {
    static const char *names[] = {"memory.total", "memory.reserved", "memory.free", "memory.used"};
    unsigned long long *fields[] = {&out->total, &out->reserved, &out->free, &out->used};
    if (out->version != (sizeof *out | 2u << 24)) return 25;
    for (int i = 0; i < 4; i++) {
        int code = number(d, fields[i], names[i], d->instance);
        if (code) return code;
    }
    return SUCCESS;
}

typedef struct { unsigned gpu, memory; } rates_t;
int nvmlDeviceGetUtilizationRates(device_t *d, rates_t *out) {
    unsigned long long gpu, memory;
    int code = number(d, &gpu, "DeviceGetUtilizationRates", 0);
    if (!code) code = number(d, &memory, "DeviceGetUtilizationRates", 1);
    if (!code) *out = (rates_t){(unsigned)gpu, (unsigned)memory};
    return code;
}
typedef struct { unsigned long long reference, violation; } violation_t;
int nvmlDeviceGetViolationStatus(device_t *d, unsigned policy, violation_t *out) {
    out->reference = 0;
    return number(d, &out->violation, "DeviceGetViolationStatus", (int)policy);
}
typedef struct { unsigned version, sensor; int celsius; } temperature_t;
int nvmlDeviceGetTemperatureV(device_t *d, temperature_t *out) {
    unsigned long long v;
    int code = number(d, &v, "DeviceGetTemperatureV", (int)out->sensor);
    if (!code) out->celsius = (int)v;
    return code;
}
typedef struct { unsigned version; int celsius; } margin_t;
int nvmlDeviceGetMarginTemperature(device_t *d, margin_t *out) {
    unsigned long long v;
    int code = number(d, &v, "DeviceGetMarginTemperature", -1);
    if (!code) out->celsius = (int)v;
    return code;
}
int nvmlDeviceGetNvLinkErrorCounter(device_t *d, unsigned link, unsigned counter, unsigned long long *out) {
    char name[64];
    snprintf(name, sizeof name, "DeviceGetNvLinkErrorCounter.%u", counter);
    return number(d, out, name, (int)link);
}
int nvmlDeviceGetTotalEccErrors(device_t *d, unsigned kind, unsigned counter, unsigned long long *out) {
    char name[64];
    snprintf(name, sizeof name, "DeviceGetTotalEccErrors.%u", kind);
    return number(d, out, name, (int)counter);
}
int nvmlDeviceGetRemappedRows(device_t *d, unsigned *a, unsigned *b, unsigned *c, unsigned *e) {
    unsigned *out[] = {a, b, c, e};
    for (int i = 0; i < 4; i++) {
        unsigned long long v;
        int code = number(d, &v, "DeviceGetRemappedRows", i);
        if (code) return code;
        *out[i] = (unsigned)v;
    }
    return SUCCESS;
}

typedef struct { uint32_t field, scope; int64_t time, latency; unsigned type; int code; uint64_t value; } field_t;
int nvmlDeviceGetFieldValues(device_t *d, int count, field_t *out) {
    char value[512];
    int code = asked(d->index, value, sizeof value, "DeviceGetFieldValues", NULL);
    if (code != UNSUPPORTED) return code;
    for (int i = 0; i < count; i++) {
        char name[64];
        unsigned long long v = 0;
        snprintf(name, sizeof name, "field.%u", out[i].field);
        out[i].code = number(d, &v, name, (int)out[i].scope);
        out[i].type = 3; /* unsigned long long */
        out[i].value = v;
    }
    return SUCCESS;
}

int nvmlDeviceGetMigMode(device_t *d, unsigned *current, unsigned *pending) {
    unsigned long long v;
    int code = number(d, &v, "DeviceGetMigMode", -1);
    if (!code) *current = *pending = (unsigned)v;
    return code;
}
int nvmlDeviceGetMigDeviceHandleByIndex(device_t *d, unsigned place, device_t **out) {
    unsigned long long v;
    int code = number(d, &v, "MigInstance", (int)place); /* the GPU instance at a place */
    if (!code) *out = &parts[d->index][v % INSTANCES];
    return code == UNSUPPORTED ? 6 : code;
}
int nvmlDeviceGetGpuInstanceId(device_t *d, unsigned *out) {
    *out = (unsigned)d->instance;
    return d->instance < 0 ? 2 : SUCCESS;
}

int nvmlEventSetCreate(set_t **out) {
    static set_t only;
    *out = &only;
    return SUCCESS;
}
int nvmlDeviceRegisterEvents(device_t *d, unsigned long long types, set_t *set) {
    (void)types, (void)set;
    char value[512];
    int code = asked(d->index, value, sizeof value, "DeviceRegisterEvents", NULL);
    return code == UNSUPPORTED ? SUCCESS : code;
}
typedef struct { device_t *device; unsigned long long type, data; unsigned gi, ci; } event_t;
/* "xids PATH": a file of "DEVICE XID" lines; each is an event, once. */
int nvmlEventSetWait_v2(set_t *set, event_t *out, unsigned timeout) {
    static long told;
    char path[512];
    unsigned device, xid;
    (void)timeout, (void)set;
    FILE *file = line_of("xids", path, sizeof path) ? fopen(path, "r") : NULL;
    int found = 0;
    for (long n = 0; file && fscanf(file, "%u %u", &device, &xid) == 2; n++)
        if (n == told) { found = 1; break; }
    if (file) fclose(file);
    if (!found) return TIMEOUT;
    told++;
    *out = (event_t){&whole[device], 8, xid, ~0u, ~0u};
    return SUCCESS;
}

typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process_t;
/* "process.PLACE PID BYTES [INSTANCE]"; "process_count N": it says that there are so many */
int nvmlDeviceGetComputeRunningProcesses_v3(device_t *d, unsigned *count, process_t *out) {
    char value[512], text[16];
    unsigned found = 0;
    int code = asked(d->index, value, sizeof value, "DeviceGetComputeRunningProcesses", NULL);
    if (code != UNSUPPORTED) return code;
    if (line_of("process_count", value, sizeof value)) {
        *count = (unsigned)strtoul(value, NULL, 0);
        return out ? SUCCESS : INSUFFICIENT_SIZE;
    }
    for (;; found++) {
        process_t one = {0, 0, ~0u, ~0u};
        snprintf(text, sizeof text, "%u", found);
        if (!find(d->index, value, sizeof value, "process", text)) break;
        sscanf(value, "%u %llu %u", &one.pid, &one.used, &one.gi);
        if (out && found < *count) out[found] = one;
    }
    code = found && !out ? INSUFFICIENT_SIZE : SUCCESS;
    *count = found;
    return code;
}

typedef struct { unsigned version, supported; } support_t;
int nvmlGpmQueryDeviceSupport(device_t *d, support_t *out) {
    unsigned long long v;
    int code = number(d, &v, "GpmQueryDeviceSupport", -1);
    if (!code) out->supported = (unsigned)v;
    return code;
}
int nvmlGpmSampleAlloc(sample_t **out) {
    *out = calloc(1, sizeof **out);
    return SUCCESS;
}
int nvmlGpmSampleFree(sample_t *sample) {
    free(sample);
    return SUCCESS;
}
static int take(device_t *d, int instance, sample_t *sample, const char *name) {
    static double taken;
    char value[512];
    int code = asked(d->index, value, sizeof value, name, NULL);
    if (code != SUCCESS && find(d->index, value, sizeof value, name, NULL)) return code;
    *sample = (sample_t){d->index, instance, ++taken};
    return SUCCESS;
}
int nvmlGpmSampleGet(device_t *d, sample_t *sample) { return take(d, -1, sample, "GpmSampleGet"); }
int nvmlGpmMigSampleGet(device_t *d, unsigned instance, sample_t *sample) {
    return take(d, (int)instance, sample, "GpmMigSampleGet");
}
typedef struct { unsigned metric; int code; double value; const char *names[3]; } metric_t;
typedef struct { unsigned version, count; sample_t *first, *second; metric_t metrics[]; } metrics_t;
int nvmlGpmMetricsGet(metrics_t *out) {
    sample_t *first = out->first, *second = out->second;
    if (out->version != 1) return 25;
    /* Two samples of one device, the older first. */
    if (!first || !second || first->device != second->device || first->instance != second->instance ||
        first->taken >= second->taken)
        return 2;
    for (unsigned i = 0; i < out->count; i++) {
        char value[512], name[64], text[16];
        snprintf(name, sizeof name, "gpm.%u", out->metrics[i].metric);
        snprintf(text, sizeof text, "%d", second->instance);
        out->metrics[i].code = asked(second->device, value, sizeof value, name, second->instance < 0 ? NULL : text);
        if (!out->metrics[i].code) out->metrics[i].value = strtod(value, NULL);
    }
    return SUCCESS;
}
