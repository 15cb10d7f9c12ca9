#include "memory_stat.h"

#include <stdlib.h>
#include <string.h>

bool stat_value(const char *text, const char *key, uint64_t *value) {
    size_t len = strlen(key);
    for (const char *line = text; line && *line;) {
        if (strncmp(line, key, len) == 0 && line[len] == ' ') {
            char *end;
            *value = strtoull(line + len + 1, &end, 10);
            return end != line + len + 1;
        }
        line = strchr(line, '\n');
        if (line) line++;
    }
    return false;
}

bool stat_held_bytes(const char *text, int version, uint64_t *bytes) {
    uint64_t anonymous = 0, shared = 0;
    bool found = version == 2 ? stat_value(text, "anon", &anonymous) : stat_value(text, "total_rss", &anonymous);
    if (!stat_value(text, version == 2 ? "shmem" : "total_shmem", &shared)) shared = 0;
    *bytes = anonymous + shared;
    return found;
}
