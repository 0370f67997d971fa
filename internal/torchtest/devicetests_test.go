package torchtest_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"penstock.example/internal/must"
)

// packages are those whose tests run on the devices for tests.
var packages = []string{"torch", "nn", "internal/segment", "profile", "pipe", "train"}

// devicetests.txt lists the tests that run on the devices for tests, with their packages. They are
// what is worth running with PENSTOCK_TEST_DEVICES: others name CPUs, or no device at all.
//
//	go test ./internal/torchtest -update
func TestListOfDeviceTests(t *testing.T) {
	const list = "devicetests.txt"
	var want bytes.Buffer
	for _, p := range packages {
		for _, name := range deviceTests(t, filepath.Join("..", "..", p)) {
			fmt.Fprintln(&want, p, name)
		}
	}
	if *must.Update {
		must.Do(t, os.WriteFile(list, want.Bytes(), 0o644))
	}
	if have, err := os.ReadFile(list); err != nil || !bytes.Equal(have, want.Bytes()) {
		t.Errorf("%s is not what the tests are now (%v); go test ./internal/torchtest -update writes it",
			list, err)
	}
}

// deviceTests lists the tests of a package that reach, by the names of functions that its tests
// declare, a call of torchtest that gives a device.
func deviceTests(t *testing.T, dir string) (tests []string) {
	uses, reach := map[string][]string{}, map[string]bool{}
	declared := func(name string, in ast.Node) {
		ast.Inspect(in, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				reach[name] = reach[name] || givesDevice(n)
			case *ast.Ident:
				uses[name] = append(uses[name], n.Name)
			}
			return true
		})
	}
	for _, name := range must.Get(filepath.Glob(filepath.Join(dir, "*_test.go")))(t) {
		f := must.Get(parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution))(t)
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok {
				declared(d.Name.Name, d.Body)
			}
		}
	}
	for changed := true; changed; {
		changed = false
		for from, list := range uses {
			if !reach[from] && slices.ContainsFunc(list, func(name string) bool { return reach[name] }) {
				reach[from], changed = true, true
			}
		}
	}
	for name := range reach {
		if reach[name] && strings.HasPrefix(name, "Test") && name != "TestMain" {
			tests = append(tests, name)
		}
	}
	slices.Sort(tests)
	return tests
}

// givesDevice says whether a call is one of torchtest that gives a device, or a context on one: New
// does where its options name none.
func givesDevice(call *ast.CallExpr) (gives bool) {
	s, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	if p, ok := s.X.(*ast.Ident); !ok || p.Name != "torchtest" {
		return false
	}
	if s.Sel.Name != "New" {
		return s.Sel.Name == "Device" || s.Sel.Name == "Devices"
	}
	gives = true
	ast.Inspect(call.Args[1], func(n ast.Node) bool {
		if field, ok := n.(*ast.KeyValueExpr); ok {
			key, ok := field.Key.(*ast.Ident)
			gives = gives && !(ok && key.Name == "Device")
		}
		return true
	})
	return gives
}
