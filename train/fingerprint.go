package train

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"penstock.example/data"
)

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
	fmt.Fprintln(h, info.Name, info.Classes, info.Input.Kind, info.Input.Shape, info.Target.Kind, info.Target.Shape, set.Len())
	for _, a := range []data.Array{batch.Input, batch.Target} {
		for _, numbers := range []any{a.Float32, a.Int64, a.Uint8} {
			if err := binary.Write(h, binary.LittleEndian, numbers); err != nil {
				return "", err
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}
