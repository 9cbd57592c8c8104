/* A stub of NVIDIA's libnvidia-ml.so.1 for tests: the functions that serve_app/engine/vllm/nvml.py calls, with NVML's
 * own signatures and return codes. Cards are lines of the file that POWER_LEVER_NVML_STUB names, read at each call:
 *
 *     UUID NAME MIG LIMIT_MW ENERGY_MJ CODE POWER_MW
 *
 * MIG is 0, 1 or -1 (a card without MIG). A CODE that is not 0 is what reading the counter returns. The counter grows by
 * POWER_MW, from ENERGY_MJ when the file was written. A first line "no driver" is a machine without one. NAME may have
 * no spaces. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

typedef struct {
    char uuid[96], name[96];
    int mig, code;
    unsigned limit, power;
    unsigned long long energy;
} card_t;
static card_t cards[16];
static int count;
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9 };

static int reread(void) {
    FILE *file = fopen(getenv("POWER_LEVER_NVML_STUB"), "r");
    char line[512];
    struct stat written;
    struct timespec now;
    double passed;
    count = 0;
    if (!file) return DRIVER_NOT_LOADED;
    fstat(fileno(file), &written);
    clock_gettime(CLOCK_REALTIME, &now);
    passed = (double)(now.tv_sec - written.st_mtim.tv_sec) + (now.tv_nsec - written.st_mtim.tv_nsec) / 1e9;
    while (count < 16 && fgets(line, sizeof line, file)) {
        card_t *card = &cards[count];
        if (!strncmp(line, "no driver", 9)) { fclose(file); return DRIVER_NOT_LOADED; }
        if (sscanf(line, "%95s %95s %d %u %llu %d %u", card->uuid, card->name, &card->mig, &card->limit, &card->energy,
                   &card->code, &card->power) != 7) continue;
        card->energy += (unsigned long long)(passed * card->power);
        count++;
    }
    fclose(file);
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return reread(); }
int nvmlShutdown(void) { return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *out) { int code = reread(); *out = (unsigned)count; return code; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    if (index >= (unsigned)count) return INVALID_ARGUMENT;
    *device = (void *)(size_t)(index + 1);
    return SUCCESS;
}
static card_t *card_of(void *device) { reread(); return &cards[(size_t)device - 1]; }
int nvmlDeviceGetUUID(void *device, char *out, unsigned length) {
    snprintf(out, length, "%s", card_of(device)->uuid);
    return SUCCESS;
}
int nvmlDeviceGetName(void *device, char *out, unsigned length) {
    snprintf(out, length, "%s", card_of(device)->name);
    return SUCCESS;
}
int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    card_t *card = card_of(device);
    if (card->mig < 0) return NOT_SUPPORTED;
    *current = *pending = (unsigned)card->mig;
    return SUCCESS;
}
int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *out) {
    card_t *card = card_of(device);
    if (!card->limit) return NOT_SUPPORTED;
    *out = card->limit;
    return SUCCESS;
}
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *out) {
    card_t *card = card_of(device);
    *out = card->energy;
    return card->code;
}
const char *nvmlErrorString(int code) { return code == 15 ? "GPU is lost" : "stub error"; }
