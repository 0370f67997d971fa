// Package timers sets the timer slack of the process to a millisecond before Go's runtime starts (Linux
// only).
//
// During calls into C, nearly all of the time of training, the runtime's monitor thread wakes every 20
// microseconds. On a virtual machine these wake-ups took 7 % of a step's processor time. The kernel joins a
// thread's timers that end within its slack, by default 50 microseconds. Threads inherit the slack, and the
// monitor starts before any Go code.
package timers

/*
#ifdef __linux__
#include <sys/prctl.h>
__attribute__((constructor)) static void set_slack(void) { prctl(PR_SET_TIMERSLACK, 1000000UL, 0UL, 0UL, 0UL); }
#endif
*/
import "C"
