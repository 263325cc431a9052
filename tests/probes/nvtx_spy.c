/* A profiler of the smallest kind: NVTX loads it by NVTX_INJECTION64_PATH, it writes what it is told to NVTX_SPY_FILE.
 * The structures are those of NVTX version 3's C interface, written down here because no header comes with the wheel. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t colorType;
    uint32_t color;
    int32_t payloadType, reserved0;
    union { uint64_t u; int64_t i; double d; } payload;
    int32_t messageType;
    union { const char *ascii; void *registered; } message;
} event_t;

typedef struct {
    size_t size;
    int (*table)(int module, void ***table, unsigned *count);
} callbacks_t;

static FILE *out;
static long opened;

static const char *text(const event_t *e) {
    return e->messageType == 3 ? (const char *)e->message.registered : e->message.ascii;
}
static void say(const char *what, void *domain, const event_t *e) {
    fprintf(out, "{\"event\":\"%s\",\"domain\":\"%s\",\"name\":\"%s\",\"payload\":%lld}\n", what, (const char *)domain,
            text(e), (long long)e->payload.i);
    fflush(out);
}
static void mark(void *d, const event_t *e) { say("mark", d, e); }
static int push(void *d, const event_t *e) { say("push", d, e); return 0; }
static int pop(void *d) { fprintf(out, "{\"event\":\"pop\",\"domain\":\"%s\"}\n", (char *)d); fflush(out); return 0; }
static uint64_t start(void *d, const event_t *e) { say("start", d, e); return (uint64_t)++opened; }
static void end(void *d, uint64_t id) { (void)d; fprintf(out, "{\"event\":\"end\",\"id\":%llu}\n", (unsigned long long)id); fflush(out); }
static void *keep(void *d, const char *s) { (void)d; return strdup(s); }
static void *create(const char *s) { return strdup(s); }

int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t)) {
    const callbacks_t *callbacks = export_table(1);
    void **table;
    unsigned count;
    out = fopen(getenv("NVTX_SPY_FILE"), "a");
    if (!out || !callbacks || !callbacks->table(5, &table, &count) || count < 13) return 0; /* 5: the domain calls */
    *(void **)table[1] = (void *)mark;
    *(void **)table[2] = (void *)start;
    *(void **)table[3] = (void *)end;
    *(void **)table[4] = (void *)push;
    *(void **)table[5] = (void *)pop;
    *(void **)table[10] = (void *)keep;
    *(void **)table[12] = (void *)create;
    return 1;
}
