package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"

	"penstock/group"
)

// A process of several may be refused before it has met the others: for its command line, a file that
// is missing, a device that its machine does not have. The others would wait for it, so it tells them.

// unmetError is the error of a process of penstock train that has not met the others yet.
type unmetError struct{ error }

func (e *unmetError) Unwrap() error { return e.error }

// unmet is err as an *unmetError, or nil.
func unmet(err error) error {
	if err == nil {
		return nil
	}
	return &unmetError{err}
}

// tellOthers tells the other processes of a run why this one does not join, if it has not met them.
// It blocks until they know, or those who are not there by then have had some seconds to come.
func tellOthers(ctx context.Context, args []string, getenv func(string) string, stderr io.Writer, err error) {
	var e *unmetError
	if !errors.As(err, &e) {
		return
	}
	place, found := placeOf(args, getenv)
	if !found {
		return
	}
	said := make(chan struct{})
	defer func() { <-said }()
	done, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		defer close(said)
		select {
		case <-done.Done():
		case <-time.After(time.Second):
			fmt.Fprintln(stderr, waitsToTell)
		}
	}()
	// Who does not come in time hears nothing. There is nobody to say so to.
	_ = group.Refuse(ctx, place, message(err))
}

// waitsToTell is said where the others do not know at once.
const waitsToTell = "penstock: waiting some seconds for the other ranks, to tell them"

// placeOf is the place in its group of a process of penstock train, whatever else is wrong with its
// command line. found is false for one process, and where the place itself is refused.
func placeOf(args []string, getenv func(string) string) (cfg group.Config, found bool) {
	var f groupFlags
	s := pflag.NewFlagSet("train", pflag.ContinueOnError)
	s.ParseErrorsWhitelist.UnknownFlags = true
	s.Usage = func() {}
	f.register(s)
	if s.Parse(args) != nil {
		return cfg, false
	}
	cfg, found, err := f.config(s, getenv)
	if err != nil || !found {
		return cfg, false
	}
	if here, even := f.share(cfg.Size); even && here > 1 {
		cfg.Rank, cfg.Size = here*cfg.Rank, f.replicas
	}
	return cfg, true
}
