package torch

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"

	"penstock.example/internal/shim"
)

// operator is an operator that is looked up when it is first used. declared is the part of its
// schema that this package relies on. A test compares it with the schema of the linked libtorch.
type operator struct {
	declared       string
	name, overload string
	writes         bool // it may change an argument in place
	handle         atomic.Pointer[byte]
}

// writes is what Writes returns.
var writes atomic.Int64

// Writes is how many calls of this process so far may have changed a tensor in place: operators that
// say so in their schema, those that Call has run, and SetBytes. While it stays the same, so does
// Changes of every tensor.
func Writes() int64 { return writes.Load() }

// declarations are the operators of all typed methods, for the test.
var declarations []*operator

// declare registers an operator by its schema: "aten::add.Tensor(Tensor self, Tensor other) ->
// Tensor". Trailing arguments that have defaults may be left out.
func declare(schema string) *operator {
	name, _, _ := strings.Cut(schema, "(")
	name, overload, _ := strings.Cut(name, ".")
	o := &operator{declared: schema, name: name, overload: overload, writes: strings.Contains(schema, "!")}
	declarations = append(declarations, o)
	return o
}

func (o *operator) fullName() string {
	if o.overload == "" {
		return o.name
	}
	return o.name + "." + o.overload
}

func (o *operator) find(c *Ctx) shim.Op {
	if h := o.handle.Load(); h != nil {
		return shim.Op(h)
	}
	h, _, _, _, err := shim.Find(o.name, o.overload)
	if err != nil {
		panic(c.failed(o.fullName(), nil, err))
	}
	o.handle.Store((*byte)(h))
	return h
}

// encoder writes the arguments of one call into a buffer that is reused, so that a call allocates
// only its results.
type encoder struct {
	c       *Ctx
	op      *operator
	words   []uint64
	tensors []*Tensor // for the error message
}

func (c *Ctx) begin(op *operator) *encoder {
	e := &c.call
	e.op, e.words, e.tensors = op, e.words[:0], e.tensors[:0]
	return e
}

func (e *encoder) put(words ...uint64) *encoder {
	e.words = append(e.words, words...)
	return e
}

// t passes a tensor; nil is None.
func (e *encoder) t(t *Tensor) *encoder {
	if t == nil {
		return e.none()
	}
	e.tensors = append(e.tensors, t)
	return e.put(shim.Tensor, uint64(t.handle()))
}

func (e *encoder) i(v int64) *encoder     { return e.put(shim.Int, uint64(v)) }
func (e *encoder) f(v float64) *encoder   { return e.put(shim.Double, math.Float64bits(v)) }
func (e *encoder) none() *encoder         { return e.put(shim.None) }
func (e *encoder) skip() *encoder         { return e.put(shim.Default) }
func (e *encoder) seed(s uint64) *encoder { return e.put(shim.Seed, s) }

func (e *encoder) b(v bool) *encoder {
	if v {
		return e.put(shim.Bool, 1)
	}
	return e.put(shim.Bool, 0)
}

// dtype passes an element type. libtorch looks it up in a table without checking bounds.
func (e *encoder) dtype(d DType) *encoder {
	if d < 0 {
		panic(&Error{Op: e.op.fullName(), Device: e.c.device, Message: fmt.Sprintf("there is no %v", d)})
	}
	return e.i(int64(d))
}

// is passes a list of ints; nil is None.
func (e *encoder) is(v []int64) *encoder {
	if v == nil {
		return e.none()
	}
	e.put(shim.Ints, uint64(len(v)))
	for _, x := range v {
		e.words = append(e.words, uint64(x))
	}
	return e
}

// fs passes a list of floats; nil is None.
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

func (e *encoder) s(v string) *encoder {
	e.put(shim.String, uint64(len(v)))
	for len(v) > 0 {
		var w uint64
		n := min(8, len(v))
		for k := 0; k < n; k++ {
			w |= uint64(v[k]) << (8 * k)
		}
		e.words = append(e.words, w)
		v = v[n:]
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
	if e.op.writes {
		writes.Add(1)
	}
	if err := shim.Call(e.op.find(c), &c.mode, e.words, c.out[:]); err != nil {
		panic(c.failed(e.op.fullName(), e.tensors, err))
	}
	return c.out[1 : 1+c.out[0]]
}

// one calls an operator with one tensor result.
func (e *encoder) one() *Tensor { return e.c.own(shim.Handle(e.run()[1])) }

// same calls an in-place operator and drops the extra reference it returns.
func (e *encoder) same(self *Tensor) *Tensor {
	shim.Release(shim.Handle(e.run()[1]))
	return self
}

// list calls an operator whose result is a list of tensors.
func (e *encoder) list() []*Tensor {
	w := e.run()
	return e.c.ownAll(shim.TakeList(w[2], int(w[1])))
}

func (c *Ctx) ownAll(handles []shim.Handle) []*Tensor {
	out := make([]*Tensor, len(handles))
	for i, h := range handles {
		if h != 0 {
			out[i] = c.own(h)
		}
	}
	return out
}

// found caches operators called by name.
var found sync.Map // name -> *operator

// Schema returns the schema of an operator in the linked libtorch, or an error.
func Schema(name, overload string) (string, error) {
	_, _, _, schema, err := shim.Find(name, overload)
	if err != nil {
		return "", fmt.Errorf("torch: %s", err.Message)
	}
	return schema, nil
}

// More arguments for Call than Go's own types.
type (
	// Rand passes a generator with this seed.
	Rand uint64
	// Omitted passes the schema's default.
	Omitted struct{}
)

// Call runs any operator of libtorch by name and overload.
//
// Arguments come in the order of the schema. They are *Tensor (nil is None), []*Tensor, int, int64,
// float64, bool, string, []int64, []float64, DType, Device, Rand and Omitted. Trailing ones may be
// left out where the schema has defaults. Ints become floats where the schema wants floats.
//
// Results are *Tensor (owned by the context; nil if undefined), []*Tensor, int64, float64, bool or
// nil. An in-place operator's result is a second handle on its argument. It panics with *Error on
// failure.
func (c *Ctx) Call(name, overload string, args ...any) []any {
	key := name + "." + overload
	o, ok := found.Load(key)
	if !ok {
		o, _ = found.LoadOrStore(key, &operator{name: name, overload: overload, writes: true})
	}
	e := c.begin(o.(*operator))
	for i, a := range args {
		if !e.any(a) {
			panic(&Error{Op: key, Device: c.device,
				Message: fmt.Sprintf("argument %d: a %T cannot be passed", i, a)})
		}
	}
	return c.results(e.run())
}

func (e *encoder) any(a any) bool {
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
		e.b(v)
	case string:
		e.s(v)
	case []int64:
		e.is(v)
	case []float64:
		e.fs(v)
	case DType:
		e.dtype(v)
	case Device:
		e.device(v)
	case Rand:
		e.seed(uint64(v))
	case Omitted:
		e.skip()
	default:
		return false
	}
	return true
}

func (c *Ctx) results(w []uint64) []any {
	w = append([]uint64(nil), w...)
	var out []any
	for len(w) > 0 {
		switch w[0] {
		case shim.Tensor:
			var t *Tensor
			if w[1] != 0 {
				t = c.own(shim.Handle(w[1]))
			}
			out, w = append(out, t), w[2:]
		case shim.Tensors:
			out, w = append(out, c.ownAll(shim.TakeList(w[2], int(w[1])))), w[3:]
		case shim.Int:
			out, w = append(out, int64(w[1])), w[2:]
		case shim.Double:
			out, w = append(out, shim.Float(w[1])), w[2:]
		case shim.Bool:
			out, w = append(out, w[1] != 0), w[2:]
		default:
			out, w = append(out, nil), w[1:]
		}
	}
	return out
}
