package torch

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"penstock.example/internal/shim"
)

type operator struct {
	handle shim.Op
	writes bool // its schema says that it may change an argument in place
}

// operators has the operators in use by name with overload. The map is replaced, never changed.
var (
	operators atomic.Pointer[map[string]operator]
	lookup    sync.Mutex
)

func init() { operators.Store(&map[string]operator{}) }

// operator looks up an operator by its name, such as "aten::add.Tensor".
func (c *Ctx) operator(name string) operator {
	if o, ok := (*operators.Load())[name]; ok {
		return o
	}
	plain, overload, _ := strings.Cut(name, ".")
	handle, schema, err := shim.Find(plain, overload)
	if err != nil {
		panic(c.callError(name, nil, err))
	}
	lookup.Lock()
	defer lookup.Unlock()
	known := maps.Clone(*operators.Load())
	known[name] = operator{handle, strings.Contains(schema, "!")}
	operators.Store(&known)
	return known[name]
}

var writes atomic.Int64

// Writes is the number of calls of this process that may have changed a tensor in place: operators
// whose schema says so, and SetBytes. As long as Writes stays the same, Changes of all tensors stay
// the same.
func Writes() int64 { return writes.Load() }

// encoder writes the arguments of one call into a reused buffer, so that a call allocates only its
// results.
type encoder struct {
	c       *Ctx
	name    string
	words   []uint64
	tensors []*Tensor // for the error message
}

// op begins a call of an operator.
func (c *Ctx) op(name string) *encoder {
	e := &c.call
	e.name, e.words, e.tensors = name, e.words[:0], e.tensors[:0]
	return e
}

func (e *encoder) put(words ...uint64) *encoder {
	e.words = append(e.words, words...)
	return e
}

// t passes a tensor. Nil is None.
func (e *encoder) t(t *Tensor) *encoder {
	if t == nil {
		return e.none()
	}
	e.tensors = append(e.tensors, t)
	return e.put(shim.Tensor, uint64(t.handle()))
}

func (e *encoder) i(v int64) *encoder   { return e.put(shim.Int, uint64(v)) }
func (e *encoder) f(v float64) *encoder { return e.put(shim.Double, math.Float64bits(v)) }
func (e *encoder) none() *encoder       { return e.put(shim.None) }

// seed passes a generator with the next draw's seed.
func (e *encoder) seed() *encoder { return e.put(shim.Seed, e.c.NextSeed()) }

func flag(on bool) int32 {
	if on {
		return 1
	}
	return 0
}

// dtype passes an element type. libtorch looks it up in a table without checking bounds.
func (e *encoder) dtype(d DType) *encoder {
	if d < 0 {
		panic(&Error{Op: e.name, Device: e.c.device, Message: fmt.Sprintf("there is no %v", d)})
	}
	return e.i(int64(d))
}

// ints passes a list. Nil is an empty list.
func (e *encoder) ints(v []int64) *encoder {
	e.put(shim.Ints, uint64(len(v)))
	for _, x := range v {
		e.words = append(e.words, uint64(x))
	}
	return e
}

func (e *encoder) fs(v []float64) *encoder {
	if v == nil {
		return e.none()
	}
	e.put(shim.Doubles, uint64(len(v)))
	for _, x := range v {
		e.words = append(e.words, math.Float64bits(x))
	}
	return e
}

func (e *encoder) ts(v []*Tensor) *encoder {
	e.tensors = append(e.tensors, v...)
	e.put(shim.Tensors, uint64(len(v)))
	for _, t := range v {
		e.words = append(e.words, uint64(t.handle()))
	}
	return e
}

// s passes a string, eight bytes a word.
func (e *encoder) s(v string) *encoder {
	e.put(shim.String, uint64(len(v)))
	for part := range slices.Chunk([]byte(v), 8) {
		var w uint64
		for k, b := range part {
			w |= uint64(b) << (8 * k)
		}
		e.words = append(e.words, w)
	}
	return e
}

func (e *encoder) device(d Device) *encoder {
	index := int64(-1)
	if d.Kind != KindCPU {
		index = int64(d.Index)
	}
	return e.put(shim.Device, uint64(d.Kind), uint64(index))
}

// run calls the operator and returns the encoded results, valid until the context's next call.
func (e *encoder) run() []uint64 {
	c := e.c
	o := c.operator(e.name)
	if o.writes {
		writes.Add(1)
	}
	if err := shim.Call(o.handle, &c.mode, e.words, c.out[:]); err != nil {
		panic(c.callError(e.name, e.tensors, err))
	}
	return c.out[1 : 1+c.out[0]]
}

// one calls an operator that returns one tensor.
func (e *encoder) one() *Tensor { return e.c.Own(shim.Handle(e.run()[1])) }

// inPlace calls an in-place operator and drops the extra reference it returns.
func (e *encoder) inPlace(self *Tensor) *Tensor {
	shim.Release(shim.Handle(e.run()[1]))
	return self
}

// Call runs any operator of libtorch by its name with overload, such as "aten::add.Tensor".
//
// Arguments come in the order of the schema. They are *Tensor (nil is None), []*Tensor, int, int64,
// float64, bool, string, []int64, []float64, DType, Device and Reduction. Ints become floats if the
// schema wants floats. Trailing arguments with a default may be left out.
//
// Results are *Tensor (owned by the context; nil if undefined), []*Tensor, int64, float64, bool or
// nil. An in-place operator returns a second handle on its argument. Call panics with *Error on
// failure.
func (c *Ctx) Call(name string, args ...any) []any { return c.results(c.encode(name, args).run()) }

// Op is Call for an operator with one result, a tensor. An in-place operator returns its argument.
func (c *Ctx) Op(name string, args ...any) *Tensor {
	e := c.encode(name, args)
	w := e.run()
	if w[0] != shim.Tensor {
		panic(&Error{Op: name, Device: c.device, Message: "the result is no tensor; use Call"})
	}
	h := shim.Handle(w[1])
	i := slices.IndexFunc(e.tensors, func(t *Tensor) bool { return t != nil && t.h == h })
	if i >= 0 && c.operator(name).writes {
		shim.Release(h)
		return e.tensors[i]
	}
	return c.Own(h)
}

func (c *Ctx) encode(name string, args []any) *encoder {
	e := c.op(name)
	for i, a := range args {
		switch v := a.(type) {
		case nil:
			e.none()
		case *Tensor:
			e.t(v)
		case []*Tensor:
			e.ts(v)
		case int:
			e.i(int64(v))
		case int64:
			e.i(v)
		case float64:
			e.f(v)
		case bool:
			e.put(shim.Bool, uint64(flag(v)))
		case string:
			e.s(v)
		case []int64:
			if v == nil {
				e.none()
			} else {
				e.ints(v)
			}
		case []float64:
			e.fs(v)
		case DType:
			e.dtype(v)
		case Device:
			e.device(v)
		case Reduction:
			e.i(int64(v))
		default:
			panic(&Error{Op: name, Device: c.device,
				Message: fmt.Sprintf("argument %d: a %T cannot be passed", i, a)})
		}
	}
	return e
}

func (c *Ctx) results(w []uint64) []any {
	w = slices.Clone(w)
	var out []any
	for len(w) > 0 {
		switch w[0] {
		case shim.Tensor:
			out, w = append(out, c.Own(shim.Handle(w[1]))), w[2:]
		case shim.Tensors:
			out, w = append(out, c.OwnAll(shim.TakeList(w[2], int(w[1])))), w[3:]
		case shim.Int:
			out, w = append(out, int64(w[1])), w[2:]
		case shim.Double:
			out, w = append(out, math.Float64frombits(w[1])), w[2:]
		case shim.Bool:
			out, w = append(out, w[1] != 0), w[2:]
		default:
			out, w = append(out, nil), w[1:]
		}
	}
	return out
}
