/* The entrypoint of the sandbox and the question whether it stays up. */
#ifndef ATOLL_ENTRY_H
#define ATOLL_ENTRY_H

#include "agent.h"

bool entry_start(struct agent *a, char **argv); /* argv[0] NULL: there is none, and the agent is settled at once */
void entry_tick(struct agent *a, uint64_t now);
void agent_free(struct agent *a); /* everything, so that a leak checker sees only leaks */

#endif
