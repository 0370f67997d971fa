package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"penstock.example/internal/arg"
	"penstock.example/schedule"
)

// linkFlags say what links between devices cost.
type linkFlags struct {
	latency    time.Duration
	bandwidth  float64 // bytes a second; 0 is no bound
	activation int64   // bytes that move between neighbours for a micro-batch
	transport  string
	capacity   int  // values that may wait on a link; 0 is any number
	asked      bool // some cost is given
}

func (l *linkFlags) register(s *pflag.FlagSet) {
	s.Var(&value{read: func(text string) (err error) {
		if l.latency, err = time.ParseDuration(text); err != nil || l.latency < 0 {
			return errors.New("want a time such as 1ms or 50us")
		}
		l.asked = true
		return nil
	}}, "latency", "`TIME` that a value is on its way between two devices, such as 1ms (default none)")
	s.Var(&value{read: func(text string) (err error) {
		l.bandwidth, err = parseRate(text)
		l.asked = true
		return err
	}}, "bandwidth", "`RATE` of a link between two devices, such as 1.25GB/s or 10Gbit/s, for --activation (default no bound)")
	size(s, &l.activation, "activation", "bytes of a stage's output for a micro-batch, and of its gradient, as a `SIZE` such as 4MiB")
	s.Var(&value{read: func(text string) (err error) {
		if l.capacity = schedule.Meet; text == "meet" {
			return nil
		}
		if l.capacity, err = strconv.Atoi(text); err != nil || l.capacity < 1 {
			return errors.New("want meet, or a number of values from 1")
		}
		return nil
	}}, "capacity", "`N` values that may wait on a link, sent and not received, or meet for none (default any number)")
	word(s, &l.transport, "transport", "buffer", "`NAME` of how links carry values: buffer, rendezvous (a value leaves when its receive was posted, as with Gloo), or fifo (in order too, as with NCCL)",
		"buffer", "rendezvous", "fifo")
}

// parseRate reads bytes, or bits, a second.
func parseRate(text string) (float64, error) {
	wrong := errors.New("want a rate such as 1.25GB/s or 10Gbit/s")
	amount, found := strings.CutSuffix(text, "/s")
	if !found {
		return 0, wrong
	}
	for unit, bits := range map[string]float64{"Gbit": 1e9, "Mbit": 1e6, "kbit": 1e3} {
		if number, found := strings.CutSuffix(amount, unit); found {
			x, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
			if err != nil || !(x > 0) || math.IsInf(x, 0) {
				return 0, wrong
			}
			return x * bits / 8, nil
		}
	}
	n, err := arg.ParseBytes(amount)
	if err != nil || n < 1 {
		return 0, wrong
	}
	return float64(n), nil
}

// links are the links that the flags say, or what is wrong with these.
func (l *linkFlags) links() (schedule.Links, error) {
	transport, err := schedule.ParseTransport(l.transport)
	switch {
	case err != nil:
		return schedule.Links{}, err
	case !l.asked && l.transport != "buffer":
		return schedule.Links{}, badUsage("--transport %s: links cost nothing; want --latency or --bandwidth with it", l.transport)
	case l.bandwidth > 0 && l.activation == 0:
		return schedule.Links{}, badUsage("--bandwidth needs --activation, the bytes that a stage sends for a micro-batch, such as 4MiB")
	case l.bandwidth == 0 && l.activation > 0:
		return schedule.Links{}, badUsage("--activation %d: bytes take no time on links without --bandwidth; want both", l.activation)
	case !l.asked:
		return schedule.Links{}, nil
	}
	return schedule.Uniform(transport, l.latency, l.bandwidth, func(schedule.Action) int64 { return l.activation }), nil
}

// text says what the links are, or nothing where they cost nothing.
func (l *linkFlags) text() string {
	if !l.asked {
		return ""
	}
	out := fmt.Sprintf(", links of %v", l.latency)
	if l.bandwidth > 0 {
		out += fmt.Sprintf(" and %.3g GB/s", l.bandwidth/1e9)
	}
	return out
}
