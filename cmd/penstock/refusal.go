package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"penstock.example/group"
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
// It blocks until they know, or the time in which they may join is over.
func tellOthers(ctx context.Context, args []string, getenv func(string) string, stderr io.Writer, err error) {
	var e *unmetError
	if !errors.As(err, &e) {
		return
	}
	places := placesOf(args, getenv)
	if places == nil {
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
	var all sync.WaitGroup
	for _, place := range places {
		all.Go(func() { _ = group.Refuse(ctx, place, message(err)) })
	}
	all.Wait()
}

// waitsToTell is said where the others do not know at once.
const waitsToTell = "penstock: waiting for the other ranks, to tell them; Ctrl-C ends"

// placesOf are the places in their group of the members in a process of penstock train, whatever else is
// wrong with its command line and its file of flags. There are none for one process, and where the place
// itself is refused.
func placesOf(args []string, getenv func(string) string) (places []group.Config) {
	var f groupFlags
	cmd := configurable(&cobra.Command{Use: "train", FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true}})
	s := cmd.Flags()
	f.register(s)
	if cmd.ParseFlags(args) != nil {
		return nil
	}
	if settings, err := settingsOf(cmd); err == nil { // which may be what is refused
		for name, value := range settings {
			if s.Lookup(name) != nil && inFiles(name) && setFrom(s, name, value) != nil {
				return nil
			}
		}
	}
	cfg, found, err := f.config(s, getenv)
	if err != nil || !found {
		return nil
	}
	here, even := f.share(cfg.Size)
	if !even {
		here = 1
	}
	if here > 1 {
		cfg.Rank, cfg.Size = here*cfg.Rank, f.replicas
	}
	for range here {
		places = append(places, cfg)
		cfg.Rank++
	}
	return places
}
