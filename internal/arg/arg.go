// Package arg checks arguments of public functions that must not be nil. A function that returns an
// error returns what Given gives; one that does not panics by Must: it is a mistake in the caller's
// program, and the stack shows where.
package arg

import (
	"context"
	"fmt"
	"reflect"
)

// Missing reports whether v is nil: no value at all, or a nil pointer or function in an interface.
// Nil slices and maps are values, which may have methods that work.
func Missing(v any) bool {
	if v == nil {
		return true
	}
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Pointer, reflect.Func:
		return r.IsNil()
	}
	return false
}

// Given returns an error if v is missing: what, with its package, is nil, and what is wanted in its
// place.
func Given(v any, what, want string) error {
	if Missing(v) {
		return fmt.Errorf("%s is nil; want %s", what, want)
	}
	return nil
}

// Context is Given for the context of a call to a package.
func Context(ctx context.Context, pkg string) error {
	return Given(ctx, pkg+": the context", "context.Background() where nothing is to end the call")
}

// Must panics with the message of Given if v is missing.
func Must(v any, what, want string) {
	if err := Given(v, what, want); err != nil {
		panic(err.Error())
	}
}
