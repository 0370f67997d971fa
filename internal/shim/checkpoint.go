package shim

/*
#include "native/shim.h"

int32_t penstockRecompute(int64_t, ps_recomputation*);
void penstockForget(int64_t);
*/
import "C"

import (
	"iter"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Recomputation is a backward's call of a checkpoint's function. Inputs are borrowed. The function may take
// over references in Grads, leaving 0. It gives references away in InputGrads.
type Recomputation struct {
	Sequence uint64 // of the checkpoint's node
	Last     bool   // the graph is not kept: there will be no other
	Wanted   []bool // by input: a gradient is wanted
	// outside of the graph, requiring a gradient where one is wanted; 0 where they are not held
	Inputs     []Handle
	Grads      []Handle // of the outputs; 0 where none came
	InputGrads []Handle
}

// recorded is a checkpoint in the registry, from its first run until its node is gone or has let go of
// its inputs.
type recorded struct {
	run    func(*Recomputation)
	forget func()
	mayHop bool // to another thread: on the CPU, where the engine has no thread of its own to wait with
}

var (
	checkpoints    sync.Map // int64 -> *recorded
	failures       sync.Map // int64 -> any: the panic of a recomputation, until the backward's error is read
	lastCheckpoint atomic.Int64
	register       = sync.OnceFunc(func() {
		C.ps_checkpoint_register((C.ps_recompute)(C.penstockRecompute), (C.ps_forget)(C.penstockForget))
	})
)

// Checkpoint attaches outputs, computed from inputs without a graph, to a node that calls run in backward,
// on any goroutine. With hold the node holds the inputs. forget, unless it is nil, is called once, on any
// thread, after the last run. The result is new references to the outputs. A panic or Goexit of run fails
// the backward with Error.Ended.
func Checkpoint(m *Mode, hold bool, inputs, outputs []Handle, run func(*Recomputation),
	forget func()) ([]Handle, *Error) {
	register()
	id := lastCheckpoint.Add(1)
	checkpoints.Store(id, &recorded{run: run, forget: forget, mayHop: m.DeviceIndex < 0})
	attached := make([]Handle, len(outputs))
	e := C.ps_checkpoint(C.int64_t(id), boolean(hold), (*C.ps_tensor)(words(inputs)), C.int32_t(len(inputs)),
		(*C.ps_tensor)(words(outputs)), C.int32_t(len(outputs)), (*C.ps_tensor)(words(attached)))
	if e != nil {
		forgotten(id)
	}
	return attached, taken(e)
}

// Checkpoints is the number of checkpoints that a backward may still ask for.
func Checkpoints() int {
	n := 0
	checkpoints.Range(func(any, any) bool {
		n++
		return true
	})
	return n
}

//export penstockForget
func penstockForget(id C.int64_t) { forgotten(int64(id)) }

func forgotten(id int64) {
	if v, ok := checkpoints.LoadAndDelete(id); ok {
		if k := v.(*recorded); k.forget != nil {
			k.forget()
		}
	}
}

// hopEvery is how many recomputations nest on one thread. After 60 the engine would move on to a thread of
// its own, where an allocation has no account and memory is freed late. So we move first, to a thread on
// which no backward runs yet.
var hopEvery = 32

//export penstockRecompute
func penstockRecompute(id C.int64_t, r *C.ps_recomputation) C.int32_t {
	v, ok := checkpoints.Load(int64(id))
	if !ok {
		for _, g := range handles(r.grad, r.outputs) {
			Release(g)
		}
		return 1
	}
	k := v.(*recorded)
	request := &Recomputation{
		Sequence: uint64(r.sequence), Last: r.last != 0, Wanted: make([]bool, int(r.inputs)),
		Inputs: handles(r.input, r.inputs), Grads: handles(r.grad, r.outputs),
		InputGrads: handles(r.input_grad, r.inputs),
	}
	for i, w := range unsafe.Slice(r.wanted, int(r.inputs)) {
		request.Wanted[i] = w != 0
	}
	defer func() {
		for _, g := range request.Grads {
			Release(g)
		}
	}()
	var ended any
	run := func() { ended = contained(func() { k.run(request) }) }
	if k.mayHop && int(r.nested) >= hopEvery {
		onFreshThread(run)
	} else {
		run()
	}
	if ended == nil {
		return 0
	}
	failures.Store(int64(id), ended) // by then the node may be gone, and its checkpoint forgotten
	return 1
}

// handles is an array of C's as a slice.
func handles(p *C.ps_tensor, n C.int32_t) []Handle {
	return unsafe.Slice((*Handle)(unsafe.Pointer(p)), int(n))
}

// endedWith is the panic of a checkpoint's recomputation.
func endedWith(checkpoint int64) any {
	if checkpoint == 0 {
		return nil
	}
	if ended, ok := failures.LoadAndDelete(checkpoint); ok {
		return ended
	}
	return "penstock: the recomputation of a checkpoint was lost"
}

type goexit struct{}

// Goexit stands for the end of a goroutine (runtime.Goexit, testing.T.FailNow) in place of a panic.
var Goexit any = goexit{}

// contained runs f and returns its panic, Goexit, or nil. Neither may pass through the frames of C++ below
// us. Goexit cannot be recovered: it ends its goroutine. So f runs on a coroutine, which may end and has
// the calling thread, as f must, for its core set and autograd's numbers of nodes.
func contained(f func()) (ended any) {
	next, _ := iter.Pull(func(func(struct{}) bool) {
		returned := false
		defer func() {
			if p := recover(); p != nil {
				ended = p
			} else if !returned {
				ended = Goexit
				panic(Goexit) // iter.Pull passes on a panic to us, and would pass on the Goexit as well
			}
		}()
		f()
		returned = true
	})
	defer func() { _ = recover() }() // Goexit, from above
	next()
	return ended
}

// onFreshThread runs f on a thread of its own, which ends with it, and waits. The thread has the
// caller's tag.
func onFreshThread(f func()) {
	done, tag := make(chan struct{}), ThreadTag()
	go func() {
		defer close(done)
		runtime.LockOSThread()
		TagThread(tag)
		f()
	}()
	<-done
}
