package torch

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"penstock.example/internal/must"
)

// TestOperatorsExist: this libtorch has every operator that the module's packages name.
func TestOperatorsExist(t *testing.T) {
	c := NewCtx(Options{})
	defer c.Close()
	files, err := filepath.Glob("../*/*.go")
	inside, err2 := filepath.Glob("../internal/*/*.go")
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	names := map[string]bool{}
	for _, file := range append(files, inside...) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text := must.Get(os.ReadFile(file))(t)
		for _, name := range regexp.MustCompile(`"((?:aten|penstock)::[\w.]+)"`).FindAllSubmatch(text, -1) {
			names[string(name[1])] = true
		}
	}
	if len(names) < 50 {
		t.Errorf("%d operators are named", len(names))
	}
	for name := range names {
		if strings.Contains(name, "scaled_dot_product") && strings.HasPrefix(Version(), "1.") {
			continue // nn asks for it
		}
		func() {
			defer func() {
				if broken := recover(); broken != nil {
					t.Error(broken)
				}
			}()
			c.operator(name)
		}()
	}
}
