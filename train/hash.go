package train

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
	"slices"

	"penstock/nn"
	"penstock/torch"
)

// ParamsSHA256 is the SHA-256, in hex, of every parameter and buffer of a model: equal hashes are
// equal bits under equal names. It does not depend on how the model is cut. The hash is over the
// tensors in the order of their names, compared as bytes, one after the other, each as
//
//	the name in UTF-8, and a byte 0
//	the number of dimensions, then each dimension, as int64, little-endian
//	the elements, little-endian, row-major
//
// The model must be materialised and must not be trained meanwhile. A MiB at a time is copied
// out.
func ParamsSHA256(model nn.Module) string {
	h := sha256.New()
	for _, p := range byName(nn.State(model)) {
		io.WriteString(h, p.Name)
		h.Write([]byte{0})
		shape := binary.LittleEndian.AppendUint64(nil, uint64(len(p.Shape())))
		for _, size := range p.Shape() {
			shape = binary.LittleEndian.AppendUint64(shape, uint64(size))
		}
		h.Write(shape)
		if err := torch.Pieces(p.Tensor(), func(piece []byte) error { h.Write(piece); return nil }); err != nil {
			panic(err)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// byName returns the parameters in the order of their names.
func byName(params []nn.NamedParam) []nn.NamedParam {
	return slices.SortedFunc(slices.Values(params), func(a, b nn.NamedParam) int { return cmp.Compare(a.Name, b.Name) })
}
