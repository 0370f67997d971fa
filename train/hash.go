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

// ParamsSHA256 returns the SHA-256, in hex, of all parameters and buffers of a model. It does not depend
// on the cut. The hash covers the tensors sorted by the bytes of their names, each as
//
//	the name in UTF-8, and a byte 0
//	the number of dimensions, then each dimension, as int64, little-endian
//	the elements, little-endian, row-major
//
// It is collective, and all members get the hash; a nil group is this process alone. No step may run
// meanwhile. Parameters are not sent between processes, and 1 MiB is copied from a device at a time.
func ParamsSHA256(g *group.Group, model nn.Module) (string, error) {
	params := sortedByName(nn.State(model))
	owners, err := paramOwners(g, params)
	if err != nil {
		return "", fmt.Errorf("train: the hash of the parameters: %w", err)
	}
	h := sha256.New() // its state goes from owner to owner
	for at := 0; at < len(params); {
		owner, first := owners[at], at
		for ; at < len(params) && owners[at] == owner; at++ {
			if owner == g.Rank() && err == nil {
				err = hashParam(h, params[at])
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

func hashParam(h hash.Hash, p nn.NamedParam) error {
	io.WriteString(h, p.Name)
	h.Write([]byte{0})
	shape := binary.LittleEndian.AppendUint64(nil, uint64(len(p.Shape())))
	for _, size := range p.Shape() {
		shape = binary.LittleEndian.AppendUint64(shape, uint64(size))
	}
	h.Write(shape)
	return torch.Pieces(p.Tensor(), func(piece []byte) error { h.Write(piece); return nil })
}

func sortedByName(params []nn.NamedParam) []nn.NamedParam {
	return slices.SortedFunc(slices.Values(params),
		func(a, b nn.NamedParam) int { return cmp.Compare(a.Name, b.Name) })
}

// Fingerprint returns a hash of a set's description, its length, and sixteen samples spread over it, for
// the settings of Recipe.Data. It tells apart other files, windows and orders of samples. Equal
// fingerprints do not prove equal sets.
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
			binary.Write(h, binary.LittleEndian, numbers) // cannot fail
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}
