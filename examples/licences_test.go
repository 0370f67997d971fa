package examples

import (
	"os"
	"regexp"
	"slices"
	"testing"
)

// TestLicences: THIRD_PARTY_LICENSES.md has a row for each module of go.mod, and for no other.
func TestLicences(t *testing.T) {
	names := func(file, pattern string) (out []string) {
		text, err := os.ReadFile("../" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			out = append(out, string(m[1]))
		}
		slices.Sort(out)
		return out
	}
	required, listed := names("go.mod", `(?m)^\t(\S+) v\S+`), names("THIRD_PARTY_LICENSES.md", `(?m)^\| (\S+\.\S+/\S+) \|`)
	if len(required) == 0 || !slices.Equal(required, listed) {
		t.Errorf("go.mod requires\n%q\nTHIRD_PARTY_LICENSES.md lists\n%q", required, listed)
	}
}
