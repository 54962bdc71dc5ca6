/* The runtime handler `lading`: runc, without the containers that rule.py refuses. */
#ifndef LADING_HANDLER_H
#define LADING_HANDLER_H

/* Become runc, unless a container would be made that may not be. Return the exit status. */
int make_container(char **argv);

#endif
