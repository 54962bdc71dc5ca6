/* The command line of runc, as far as it says whether a container is made, from what, and where errors are logged. */
#ifndef LADING_RUNC_CALL_H
#define LADING_RUNC_CALL_H

#include <stdbool.h>

struct runc_call {
    const char *log;     /* a file; NULL: none */
    bool json;           /* the log's format */
    bool makes;          /* a container */
    const char *bundle;  /* its folder */
    const char *unknown; /* the word that cannot be understood; NULL: there is none */
};

/* `words` end with NULL; the program's name is not among them. */
struct runc_call read_runc_call(char *const *words);

#endif
