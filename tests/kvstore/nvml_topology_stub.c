/* A libnvidia-ml.so.1 with as much of NVML as a topology is read from.
 *
 * KVSTORE_NVML_STUB names a file of "KEY VALUE" lines, read at every call: "init CODE", "count N", "bus.I TEXT",
 * "name TEXT", "uuid TEXT", "error TEXT", "link.I.L TYPE BUS" (an active NVLink: TYPE 0 a GPU at BUS, 2 a switch), "ancestor.I.J LEVEL", "nvlink.I.J STATUS"
 * (I < J). What no line names is answered with 3, NVML_ERROR_NOT_SUPPORTED. Structures are those of nvml.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNSUPPORTED 3

typedef struct { int index; } device_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char busId[32]; } pci_t;

static device_t devices[16];

static int line_of(const char *key, char *value, size_t size) {
    const char *path = getenv("KVSTORE_NVML_STUB");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256];
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

static int number(const char *key, unsigned *out) {
    char value[64];
    if (!line_of(key, value, sizeof value)) return UNSUPPORTED;
    *out = (unsigned)strtoul(value, NULL, 0);
    return 0;
}

static int pair(const char *stem, device_t *a, device_t *b, unsigned *out) {
    char key[64];
    int low = a->index < b->index ? a->index : b->index, high = a->index + b->index - low;
    snprintf(key, sizeof key, "%s.%d.%d", stem, low, high);
    return number(key, out);
}

static int link_of(device_t *d, unsigned link, unsigned *type, char *bus, size_t size) {
    char key[64], value[64];
    snprintf(key, sizeof key, "link.%d.%u", d->index, link);
    if (!line_of(key, value, sizeof value)) return UNSUPPORTED;
    *type = (unsigned)strtoul(value, NULL, 0);
    const char *rest = strchr(value, ' ');
    snprintf(bus, size, "%s", rest ? rest + 1 : "");
    return 0;
}

int nvmlInitWithFlags(unsigned flags) {
    unsigned code = 0;
    (void)flags;
    for (int i = 0; i < 16; i++) devices[i].index = i;
    return number("init", &code) ? 0 : (int)code;
}
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) {
    static char text[64];
    (void)code;
    return line_of("error", text, sizeof text) ? text : "an error of the stub";
}
int nvmlDeviceGetCount_v2(unsigned *count) { return number("count", count); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t **out) { *out = &devices[index]; return 0; }
int nvmlDeviceGetUUID(device_t *d, char *out, unsigned size) {
    if (!line_of("uuid", out, size)) snprintf(out, size, "GPU-%d", d->index);
    return 0;
}
int nvmlDeviceGetName(device_t *d, char *out, unsigned size) {
    (void)d;
    if (!line_of("name", out, size)) snprintf(out, size, "Stub 9000");
    return 0;
}
int nvmlDeviceGetPciInfo_v3(device_t *d, pci_t *out) {
    char key[64];
    memset(out, 0, sizeof *out);
    snprintf(key, sizeof key, "bus.%d", d->index);
    return line_of(key, out->busId, sizeof out->busId) ? 0 : UNSUPPORTED;
}
int nvmlDeviceGetNvLinkState(device_t *d, unsigned link, unsigned *active) {
    unsigned type;
    char bus[64];
    *active = 1;
    return link_of(d, link, &type, bus, sizeof bus);
}
int nvmlDeviceGetNvLinkRemoteDeviceType(device_t *d, unsigned link, unsigned *type) {
    char bus[64];
    return link_of(d, link, type, bus, sizeof bus);
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(device_t *d, unsigned link, pci_t *out) {
    unsigned type;
    memset(out, 0, sizeof *out);
    return link_of(d, link, &type, out->busId, sizeof out->busId);
}
int nvmlDeviceGetTopologyCommonAncestor(device_t *a, device_t *b, unsigned *level) { return pair("ancestor", a, b, level); }
int nvmlDeviceGetP2PStatus(device_t *a, device_t *b, unsigned what, unsigned *status) {
    return what == 2 ? pair("nvlink", a, b, status) : UNSUPPORTED;
}
