package train

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"slices"

	"penstock.example/data"
	"penstock.example/group"
	"penstock.example/nn"
	"penstock.example/torch"
)

// ParamsSHA256 is the SHA-256, in hex, of every parameter and buffer of a model: equal hashes are
// equal bits under equal names. It does not depend on how the model is cut. The hash is over the
// tensors in the order of their names, compared as bytes, one after the other, each as
//
//	the name in UTF-8, and a byte 0
//	the number of dimensions, then each dimension, as int64, little-endian
//	the elements, little-endian, row-major
//
// Each parameter exists in at least one process of the group; nil is this process alone. The model must not
// be trained meanwhile. It is collective, and all members get the hash. No parameter is sent: the members add
// theirs in turn to the state of the hash. A MiB at a time is copied out.
func ParamsSHA256(g *group.Group, model nn.Module) (string, error) {
	params := byName(nn.State(model))
	owners, err := owners(g, params)
	if err != nil {
		return "", fmt.Errorf("train: the hash of the parameters: %w", err)
	}
	h := sha256.New()
	for at := 0; at < len(params); {
		owner, first := owners[at], at
		for ; at < len(params) && owners[at] == owner; at++ {
			if owner == g.Rank() && err == nil {
				err = addTo(h, params[at])
			}
		}
		state, _ := h.(encoding.BinaryMarshaler).MarshalBinary()
		all, err := group.Meet(context.Background(), g,
			fmt.Sprintf("train: hash from parameter %d on", first), state, err)
		if err == nil {
			err = h.(encoding.BinaryUnmarshaler).UnmarshalBinary(all[owner])
		}
		if err != nil {
			return "", fmt.Errorf("train: the hash of the parameters: %w", err)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// addTo adds a parameter to a hash.
func addTo(h hash.Hash, p nn.NamedParam) error {
	io.WriteString(h, p.Name)
	h.Write([]byte{0})
	shape := binary.LittleEndian.AppendUint64(nil, uint64(len(p.Shape())))
	for _, size := range p.Shape() {
		shape = binary.LittleEndian.AppendUint64(shape, uint64(size))
	}
	h.Write(shape)
	return torch.Pieces(p.Tensor(), func(piece []byte) error { h.Write(piece); return nil })
}

// byName returns the parameters in the order of their names.
func byName(params []nn.NamedParam) []nn.NamedParam {
	return slices.SortedFunc(slices.Values(params),
		func(a, b nn.NamedParam) int { return cmp.Compare(a.Name, b.Name) })
}

// Fingerprint tells data sets apart, for the settings of Recipe.Data. It is a hash of the set's
// description, its length, and sixteen samples spread over it. It detects another file, another
// window or another order. Equal fingerprints do not prove equal sets.
func Fingerprint(set data.Dataset) (string, error) {
	const samples = 16
	var indices []int
	for i := range min(samples, set.Len()) {
		indices = append(indices, i*set.Len()/min(samples, set.Len()))
	}
	var batch data.Batch
	if err := set.Fill(&batch, indices); err != nil {
		return "", err
	}
	h := sha256.New()
	info := set.Info()
	fmt.Fprintln(h, info.Name, info.Classes, info.Input.Kind, info.Input.Shape, info.Target.Kind,
		info.Target.Shape, set.Len())
	for _, a := range []data.Array{batch.Input, batch.Target} {
		for _, numbers := range []any{a.Float32, a.Int64, a.Uint8} {
			if err := binary.Write(h, binary.LittleEndian, numbers); err != nil {
				return "", err
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}
