package link

import (
	"encoding/binary"
	"errors"
	"fmt"

	"penstock.example/torch"
)

// layout says what is in a parcel, so that a receiver can make room for its tensors before they
// arrive. It is comparable by its bytes.
type layout [][]slot

// slot is a value of a parcel. A tensor moves as its core: every dimension along which it only
// repeats itself is narrowed to one element, and expanded again by the receiver.
type slot struct {
	absent  bool
	wants   bool
	same    int // the index of the same tensor earlier in the list, or -1
	dtype   torch.DType
	shape   []int64
	core    []int64 // the shape of the core
	strides []int64 // of the core, which is dense
}

// bytes is the size of the core.
func (s slot) bytes() int64 {
	n := itemSize(s.dtype)
	for _, size := range s.core {
		n *= size
	}
	return n
}

// itemSize is the size of an element, also of types that Go slices do not hold; 0 if there is no
// such type.
func itemSize(t torch.DType) int64 {
	switch t {
	case 1: // int8
		return 1
	case 2, 5: // int16, float16
		return 2
	case 9: // complex64
		return 8
	case 10: // complex128
		return 16
	}
	return t.Size()
}

// moves says whether the slot has a tensor that moves by itself and has elements.
func (s slot) moves() bool { return !s.absent && s.same < 0 && s.bytes() > 0 }

// Limits of what a parcel may be, which a description that was damaged exceeds.
const (
	maxLists      = 1 << 12
	maxValues     = 1 << 12
	maxDimensions = 64
	maxBytes      = 1 << 40
	maxLayout     = 1 << 20 // bytes of a description
)

// encode is the description that parseLayout reads.
func (l layout) encode() []byte {
	out := binary.AppendUvarint(nil, uint64(len(l)))
	for _, list := range l {
		out = binary.AppendUvarint(out, uint64(len(list)))
		for _, s := range list {
			flags := byte(0)
			if s.absent {
				flags |= 1
			}
			if s.wants {
				flags |= 2
			}
			if s.same >= 0 {
				flags |= 4
			}
			out = append(out, flags)
			switch {
			case s.absent:
			case s.same >= 0:
				out = binary.AppendUvarint(out, uint64(s.same))
			default:
				out = append(out, byte(s.dtype), byte(len(s.shape)))
				for _, sizes := range [][]int64{s.shape, s.core, s.strides} {
					for _, n := range sizes {
						out = binary.AppendUvarint(out, uint64(n))
					}
				}
			}
		}
	}
	return out
}

// parseLayout reads a description. It refuses whatever encode does not write.
func parseLayout(text []byte) (layout, error) {
	r := &reader{text: text}
	out := make(layout, r.number(maxLists))
	for i := range out {
		if r.err != nil {
			break
		}
		list := make([]slot, r.number(maxValues))
		for k := range list {
			if r.err != nil {
				break
			}
			list[k] = r.slot(k)
		}
		out[i] = list
	}
	if r.err == nil && len(r.text) > 0 {
		r.refuse("%d bytes are left over", len(r.text))
	}
	if r.err != nil {
		return nil, fmt.Errorf("link: the description of a parcel: %w", r.err)
	}
	return out, nil
}

// reader reads a description. After the first error it reads zeros.
type reader struct {
	text []byte
	err  error
}

func (r *reader) refuse(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
	r.text = nil
}

func (r *reader) number(most uint64) uint64 {
	n, size := binary.Uvarint(r.text)
	switch {
	case r.err != nil:
		return 0
	case size <= 0:
		r.refuse("it ends too early")
		return 0
	case n > most:
		r.refuse("%d is more than %d", n, most)
		return 0
	case size > 1 && r.text[size-1] == 0:
		r.refuse("a number has a byte too many")
		return 0
	}
	r.text = r.text[size:]
	return n
}

func (r *reader) byte() byte {
	if len(r.text) == 0 {
		r.refuse("it ends too early")
		return 0
	}
	b := r.text[0]
	r.text = r.text[1:]
	return b
}

// slot reads the value with an index.
func (r *reader) slot(index int) slot {
	flags := r.byte()
	s := slot{absent: flags&1 != 0, wants: flags&2 != 0, same: -1}
	switch {
	case flags > 7 || s.absent && flags&4 != 0:
		r.refuse("a value has flags %d", flags)
	case s.absent:
	case flags&4 != 0:
		if s.same = int(r.number(maxValues)); r.err == nil && s.same >= index {
			r.refuse("value %d is the same as value %d", index, s.same)
		}
	default:
		s.dtype = torch.DType(r.byte())
		if r.err == nil && itemSize(s.dtype) == 0 {
			r.refuse("there is no element type %d", s.dtype)
		}
		dimensions := int(r.byte())
		if dimensions > maxDimensions {
			r.refuse("a tensor has %d dimensions", dimensions)
			return s
		}
		for _, sizes := range []*[]int64{&s.shape, &s.core, &s.strides} {
			for range dimensions {
				*sizes = append(*sizes, int64(r.number(maxBytes)))
			}
		}
		if r.err == nil {
			if err := s.check(); err != nil {
				r.refuse("%w", err)
			}
		}
	}
	return s
}

// check refuses a core that does not fit its shape or is not dense.
func (s slot) check() error {
	for d, n := range s.core {
		if n != s.shape[d] && n != 1 {
			return fmt.Errorf("a core of %v for the shape %v", s.core, s.shape)
		}
		if n > 1 && s.strides[d] == 0 {
			return fmt.Errorf("strides %v of a core of %v, which repeats itself", s.strides, s.core)
		}
	}
	elements := int64(1)
	for _, n := range s.shape {
		if n > 0 && elements > maxBytes/n {
			return errors.New("a tensor is larger than any")
		}
		elements *= n
	}
	if !torch.Dense(s.core, s.strides) {
		return fmt.Errorf("strides %v of a core of %v, which are not dense", s.strides, s.core)
	}
	return nil
}
