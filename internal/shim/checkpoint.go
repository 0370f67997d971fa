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

// Recomputation is a backward's call of a checkpoint's function. Inputs are borrowed. The function
// may take over references in Grads, leaving 0. References in InputGrads pass to the caller.
type Recomputation struct {
	Sequence uint64   // of the checkpoint's node
	Last     bool     // no other call follows, as the graph is not kept
	Wanted   []bool   // by input: a gradient is wanted
	Inputs   []Handle // without a graph, requiring the wanted gradients; 0 if the node does not hold them
	Grads    []Handle // of the outputs; 0 without a gradient

	InputGrads []Handle // 0 without a gradient
}

// checkpoint is a registry entry. It lives until its node is freed or has released its inputs.
type checkpoint struct {
	run    func(*Recomputation)
	forget func()
	mayHop bool // to another thread: on the CPU, where no thread of the engine runs the backward
}

var (
	checkpoints    sync.Map // int64 -> *checkpoint
	failures       sync.Map // int64 -> any: the panic of a recomputation, until the backward's error is read
	lastCheckpoint atomic.Int64
	register       = sync.OnceFunc(func() {
		C.ps_checkpoint_register((C.ps_recompute)(C.penstockRecompute), (C.ps_forget)(C.penstockForget))
	})
)

// Checkpoint attaches outputs, computed from inputs without a graph, to a node that calls run in
// backward, on any goroutine. With hold the node holds the inputs. forget, if not nil, is called
// once, on any thread, after the last run. The result has new references to the outputs. A panic or
// Goexit of run fails the backward with Error.Ended.
func Checkpoint(m *Mode, hold bool, inputs, outputs []Handle, run func(*Recomputation),
	forget func()) ([]Handle, *Error) {
	register()
	id := lastCheckpoint.Add(1)
	checkpoints.Store(id, &checkpoint{run: run, forget: forget, mayHop: m.DeviceIndex < 0})
	attached := make([]Handle, len(outputs))
	e := C.ps_checkpoint(C.int64_t(id), boolean(hold), (*C.ps_tensor)(dataOf(inputs)), C.int32_t(len(inputs)),
		(*C.ps_tensor)(dataOf(outputs)), C.int32_t(len(outputs)), (*C.ps_tensor)(dataOf(attached)))
	if e != nil {
		unregister(id)
	}
	return attached, toError(e)
}

// Checkpoints returns the number of registered checkpoints.
func Checkpoints() int {
	n := 0
	checkpoints.Range(func(any, any) bool { n++; return true })
	return n
}

//export penstockForget
func penstockForget(id C.int64_t) { unregister(int64(id)) }

func unregister(id int64) {
	if v, ok := checkpoints.LoadAndDelete(id); ok && v.(*checkpoint).forget != nil {
		v.(*checkpoint).forget()
	}
}

// hopEvery is how many recomputations nest on one thread. The next one runs on a fresh thread.
// Beyond 60 the engine would choose a thread of its own, which has no memory account and frees
// tensors late.
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
	k := v.(*checkpoint)
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
	run := func() { ended = contain(func() { k.run(request) }) }
	if k.mayHop && int(r.nested) >= hopEvery {
		onFreshThread(run)
	} else {
		run()
	}
	if ended == nil {
		return 0
	}
	failures.Store(int64(id), ended) // the node and its entry may be gone when the error is read
	return 1
}

func handles(p *C.ps_tensor, n C.int32_t) []Handle {
	return unsafe.Slice((*Handle)(unsafe.Pointer(p)), int(n))
}

// takeFailure returns the panic of a checkpoint's recomputation, or nil for id 0.
func takeFailure(id int64) any {
	if id == 0 {
		return nil
	}
	if ended, ok := failures.LoadAndDelete(id); ok {
		return ended
	}
	return "penstock: the recomputation of a checkpoint was lost"
}

type goexit struct{}

// Goexit is Error.Ended after runtime.Goexit, for example by testing.T.FailNow.
var Goexit any = goexit{}

// contain runs f and returns its panic, Goexit, or nil. Neither may pass through the caller's C++
// frames. Goexit cannot be recovered: it ends its goroutine. So f runs on a coroutine, which may
// end. A coroutine keeps the calling thread, which f needs for its core set and autograd's sequence
// numbers.
func contain(f func()) (ended any) {
	next, _ := iter.Pull(func(func(struct{}) bool) {
		returned := false
		defer func() {
			if p := recover(); p != nil {
				ended = p
			} else if !returned {
				ended = Goexit
				panic(Goexit) // iter.Pull passes the panic to next, and would pass the Goexit as well
			}
		}()
		f()
		returned = true
	})
	defer func() { _ = recover() }() // the panic from above
	next()
	return ended
}

// onFreshThread runs f on a new thread with the caller's tag, and waits. The thread ends after f.
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
