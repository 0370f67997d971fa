package remat

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Kind is a kind of operation.
type Kind int

// The kinds; see the package's doc.
const (
	Forward     Kind = iota // without gradients, input dropped
	ForwardKeep             // without gradients, input kept
	ForwardSave             // with gradients
	LossStep                // of the whole chain
	Backward
)

type kindText struct{ name, short string }

var kinds = []kindText{
	Forward: {"forward", "F"}, ForwardKeep: {"forward_keep", "K"}, ForwardSave: {"forward_save", "S"},
	LossStep: {"loss", "L"}, Backward: {"backward", "B"},
}

// String returns the kind as files have it, such as "forward_keep".
func (k Kind) String() string {
	if k < 0 || int(k) >= len(kinds) {
		return fmt.Sprintf("kind(%d)", int(k))
	}
	return kinds[k].name
}

// forward reports whether the kind runs a layer forward.
func (k Kind) forward() bool { return k == Forward || k == ForwardKeep || k == ForwardSave }

// Op is an operation on a layer; for the loss Layer is 0.
type Op struct {
	Kind  Kind
	Layer int
}

// String returns the operation as [ParseOps] reads it: F3 (forward), K3 (forward_keep), S3
// (forward_save), L (loss), B3 (backward).
func (o Op) String() string {
	switch {
	case o.Kind == LossStep:
		return "L"
	case o.Kind < 0 || int(o.Kind) >= len(kinds):
		return fmt.Sprintf("%v %d", o.Kind, o.Layer)
	}
	return kinds[o.Kind].short + strconv.Itoa(o.Layer)
}

// ParseOps reads operations in short, separated by white space.
func ParseOps(s string) ([]Op, error) {
	var ops []Op
	for i, word := range strings.Fields(s) {
		kind := slices.IndexFunc(kinds, func(k kindText) bool { return k.short == word[:1] })
		layer := 0
		var err error
		if Kind(kind) != LossStep {
			layer, err = strconv.Atoi(word[1:])
		}
		op := Op{Kind(kind), layer}
		if kind < 0 || err != nil || layer < 0 || op.String() != word {
			return nil, fmt.Errorf("remat: operation %d is %q; want L, or F, K, S or B with the number "+
				"of a layer, such as K3", i, word)
		}
		ops = append(ops, op)
	}
	return ops, nil
}
