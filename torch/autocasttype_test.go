package torch_test

import (
	"encoding/json"
	"testing"

	"penstock.example/torch"
)

// Files from when bfloat16 was the only type are read, and written alike.
func TestAutocastAsText(t *testing.T) {
	for want, text := range map[torch.Autocast]string{torch.AutocastOff: `false`, torch.AutocastBFloat16: `true`, torch.AutocastFloat16: `"float16"`} {
		got, err := json.Marshal(want)
		if err != nil || string(got) != text {
			t.Errorf("%v as JSON is %s, %v", want, got, err)
		}
		var a torch.Autocast
		if err := json.Unmarshal([]byte(text), &a); err != nil || a != want {
			t.Errorf("%s is %v, %v", text, a, err)
		}
		if a, err := torch.ParseAutocast(want.String()); err != nil || a != want {
			t.Errorf("%v is read as %v, %v", want, a, err)
		}
	}
	var a torch.Autocast
	for _, text := range []string{`"half"`, `3`, `null1`} {
		if err := json.Unmarshal([]byte(text), &a); err == nil {
			t.Errorf("%s is read as %v", text, a)
		}
	}
}
