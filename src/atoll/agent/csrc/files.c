#include "files.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>

struct operation {
    const char *name;
    size_t arguments;
    enum fault (*run)(char **arguments);
};

static const struct operation operations[] = {
    {"stat", 1, files_stat},   {"list", 4, files_list},   {"read", 1, files_read}, {"write", 2, files_write},
    {"delete", 2, files_delete}, {"mkdir", 2, files_mkdir}, {"move", 3, files_move}, {"watch", 2, files_watch},
    {"pack", 1, files_pack},   {"unpack", 1, files_unpack},
};

/* files OPERATION ARGUMENTS… -- ROOT… */
int files_main(int argc, char **argv) {
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    signal(SIGPIPE, SIG_IGN); /* what was begun is undone first */
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max; /* a descriptor for every level of folders, twice */
        setrlimit(RLIMIT_NOFILE, &files);
    }
    for (size_t i = 0; argc >= 2 && i < sizeof operations / sizeof operations[0]; i++) {
        const struct operation *operation = &operations[i];
        size_t rest = 2 + operation->arguments;
        if (strcmp(argv[1], operation->name) != 0) continue;
        if ((size_t)argc <= rest || strcmp(argv[rest], "--") != 0) return FAULT_BAD_INPUT;
        enum fault fault = roots_open(argv + rest + 1, (size_t)argc - rest - 1);
        return (int)(fault ? fault : operation->run(argv + 2));
    }
    return FAULT_BAD_INPUT;
}
