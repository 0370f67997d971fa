package torchtest_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the list of tests anew")

// packages are those whose tests run on the devices for tests.
var packages = []string{"torch", "nn", "segment", "profile", "pipe", "train"}

// devicetests.txt lists the tests that run on the devices for tests, with their packages. They are
// what is worth running with PENSTOCK_TEST_DEVICES: others name CPUs, or no device at all.
//
//	go test ./internal/torchtest -update
func TestListOfDeviceTests(t *testing.T) {
	const list = "devicetests.txt"
	var want bytes.Buffer
	for _, p := range packages {
		tests, err := deviceTests(filepath.Join("..", "..", p))
		if err != nil {
			t.Fatal(err)
		}
		if len(tests) == 0 {
			t.Errorf("%s has none", p)
		}
		for _, name := range tests {
			fmt.Fprintln(&want, p, name)
		}
	}
	if *update {
		if err := os.WriteFile(list, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(list); err != nil || !bytes.Equal(have, want.Bytes()) {
		t.Errorf("%s is not what the tests are now (%v); go test ./internal/torchtest -update writes it", list, err)
	}
}

// deviceTests lists the tests of a package that reach a function of torchtest which gives devices,
// by way of what the package's test files declare.
func deviceTests(dir string) (tests []string, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	byPackage := map[string][]*ast.File{}
	for _, name := range names {
		f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		byPackage[f.Name.Name] = append(byPackage[f.Name.Name], f)
	}
	for _, files := range byPackage {
		info := types.Info{Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{}}
		config := types.Config{Importer: nothing{}, Error: func(error) {}} // what is imported is not known, and not needed
		_, _ = config.Check(dir, fset, files, &info)
		uses, reach := map[types.Object][]types.Object{}, map[types.Object]bool{}
		declared := func(name *ast.Ident, in ast.Node) {
			from := info.Defs[name]
			ast.Inspect(in, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					reach[from] = reach[from] || givesDevice(n)
				case *ast.Ident:
					uses[from] = append(uses[from], info.Uses[n])
				}
				return true
			})
		}
		for _, f := range files {
			for _, d := range f.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					declared(d.Name, d)
				case *ast.GenDecl:
					for _, s := range d.Specs {
						if s, ok := s.(*ast.ValueSpec); ok {
							for _, name := range s.Names {
								declared(name, s)
							}
						}
					}
				}
			}
		}
		for changed := true; changed; {
			changed = false
			for from, list := range uses {
				if !reach[from] && slices.ContainsFunc(list, func(o types.Object) bool { return reach[o] }) {
					reach[from], changed = true, true
				}
			}
		}
		for o := range reach {
			if reach[o] && strings.HasPrefix(o.Name(), "Test") && o.Name() != "TestMain" {
				tests = append(tests, o.Name())
			}
		}
	}
	slices.Sort(tests)
	return tests, nil
}

// nothing imports no package.
type nothing struct{}

func (nothing) Import(path string) (*types.Package, error) { return nil, errors.New("not imported") }

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
