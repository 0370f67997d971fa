package shim

/*
#include "native/shim.h"
*/
import "C"

// Event is a point in the work of a stream. Its owner frees it.
type Event uintptr

func OpenStream(deviceType, device int) (stream int64, err *Error) {
	var out C.int64_t
	err = taken(C.ps_stream_open(C.int32_t(deviceType), C.int32_t(device), &out))
	return int64(out), err
}

func RecordEvent(deviceType, device int, stream int64, timed bool) (e Event, err *Error) {
	var out C.ps_event
	err = taken(C.ps_event_record(C.int32_t(deviceType), C.int32_t(device), C.int64_t(stream),
		boolean(timed), &out))
	return Event(out), err
}

func WaitEvent(e Event, deviceType, device int, stream int64) *Error {
	return taken(C.ps_event_wait(C.ps_event(e), C.int32_t(deviceType), C.int32_t(device), C.int64_t(stream)))
}

func SynchronizeEvent(e Event) *Error { return taken(C.ps_event_synchronize(C.ps_event(e))) }

func EventSeconds(from, to Event) (seconds float64, err *Error) {
	var out C.double
	err = taken(C.ps_event_seconds(C.ps_event(from), C.ps_event(to), &out))
	return float64(out), err
}

func FreeEvent(e Event) { C.ps_event_free(C.ps_event(e)) }
