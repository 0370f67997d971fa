package torch

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Autocast is the element type in which products and convolutions run, as with torch.autocast. The
// zero value is off.
type Autocast int

// Gradients in float16 underflow: train with an optim.Scaler. libtorch 1.13 has no products in
// float16 on a CPU.
const (
	AutocastOff Autocast = iota
	AutocastBFloat16
	AutocastFloat16
)

var autocastNames = []string{"off", "bfloat16", "float16"}

// ParseAutocast reads off, bfloat16 or float16.
func ParseAutocast(s string) (Autocast, error) {
	if i := slices.Index(autocastNames, s); i >= 0 {
		return Autocast(i), nil
	}
	return 0, fmt.Errorf("torch: autocast to %q: want bfloat16, float16 or off", s)
}

func (a Autocast) String() string {
	if a < 0 || int(a) >= len(autocastNames) {
		return fmt.Sprintf("autocast %d", int(a))
	}
	return autocastNames[a]
}

// MarshalJSON writes false for off, true for bfloat16, and the name for other types. Files from
// before float16 have only false and true.
func (a Autocast) MarshalJSON() ([]byte, error) {
	if a == AutocastOff || a == AutocastBFloat16 {
		return json.Marshal(a == AutocastBFloat16)
	}
	return json.Marshal(a.String())
}

func (a *Autocast) UnmarshalJSON(text []byte) (err error) {
	switch name := strings.Trim(string(text), `"`); name {
	case "false":
		*a = AutocastOff
	case "true":
		*a = AutocastBFloat16
	default:
		*a, err = ParseAutocast(name)
	}
	return err
}
