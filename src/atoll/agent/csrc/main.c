#include <stdio.h>
#include <string.h>

#include "agent.h"
#include "files.h"
#include "shim.h"

int main(int argc, char **argv) {
    if (argc >= 2 && strcmp(argv[1], "agent") == 0) return agent_main(argc - 1, argv + 1);
    if (argc >= 2 && strcmp(argv[1], "shim") == 0) return shim_main(argc - 1, argv + 1);
    if (argc >= 2 && strcmp(argv[1], "files") == 0) return files_main(argc - 1, argv + 1);
    if (argc == 2 && strcmp(argv[1], "version") == 0) return puts(ATOLL_VERSION) < 0;
    fputs("usage: atoll-agent agent|shim|files|version …\n", stderr);
    return 2;
}
