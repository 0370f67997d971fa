package search

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"penstock/internal/arg"
)

// Machine is what there is to train on.
type Machine struct {
	// Devices, at least one, have stages in some order: in theirs, where they are equal, where a link is
	// between two by name, or where there are more than 24 orders that differ. Otherwise all are tried.
	Devices []Device
	Links   []Link // what joins two devices; of two that do, the later. None costs nothing.
}

// Device is a device of a machine.
type Device struct {
	Name string // that no other has
	// Bytes is the most that it may hold; 0 is no limit. What it is divided into has equal parts.
	Bytes int64
	// Threads is how many threads it has; 0 is 1. With fewer for each stage, several stages share it, as
	// far as they go, each as a device of its own.
	Threads int
	// Speed is how many times as fast it is as what was measured; 0 is 1.
	Speed float64
}

// Link is what it costs to move values between two devices, in either direction.
type Link struct {
	From, To  string        // names of devices; "" is any
	Latency   time.Duration // from when a value leaves until its first byte arrives
	Bandwidth float64       // bytes a second; 0 is no bound
}

func (d Device) threads() int { return max(d.Threads, 1) }

func (d Device) speed() float64 {
	if d.Speed == 0 {
		return 1
	}
	return d.Speed
}

// maxOrders is the most orders of devices that are tried.
const maxOrders = 24

// orders are the machine with its devices in all orders that differ, its own first.
func (m Machine) orders() []Machine {
	n, list := arrangements(m.kinds()), []Machine{m}
	if n == 1 || n > maxOrders || slices.ContainsFunc(m.Links, func(l Link) bool { return l.From != "" || l.To != "" }) {
		return list
	}
	rest := slices.Clone(m.Devices)
	var place func(at int)
	own := func() bool {
		return slices.EqualFunc(rest, m.Devices, func(a, b Device) bool { return a.kind() == b.kind() })
	}
	place = func(at int) {
		if at == len(rest) {
			if !own() {
				list = append(list, Machine{slices.Clone(rest), m.Links})
			}
			return
		}
		tried := map[Device]bool{}
		for k := at; k < len(rest); k++ {
			if tried[rest[k].kind()] {
				continue
			}
			tried[rest[k].kind()] = true
			was := slices.Clone(rest)
			one := rest[k]
			rest = slices.Insert(slices.Delete(rest, k, k+1), at, one)
			place(at + 1)
			rest = was
		}
	}
	place(0)
	return list
}

// kind is a device without its name.
func (d Device) kind() Device {
	return Device{Bytes: d.Bytes, Threads: d.threads(), Speed: d.speed()}
}

// kinds says how many devices there are of each kind.
func (m Machine) kinds() map[Device]int {
	out := map[Device]int{}
	for _, d := range m.Devices {
		out[d.kind()]++
	}
	return out
}

// arrangements is how many orders of devices differ, or any number above maxOrders.
func arrangements(kinds map[Device]int) int {
	n, all := 0, 1
	for _, count := range kinds {
		for k := 1; k <= count && all <= maxOrders; k++ {
			n++
			all = all * n / k
		}
	}
	return all
}

// alike is the same text for workers that differ in their names alone.
func alike(list []worker, threads, devices int) string {
	text := fmt.Sprint(threads, devices)
	for _, w := range list {
		text += fmt.Sprint(" ", w.bytes, " ", w.speed)
	}
	return text
}

// check returns a *arg.ConfigError for what makes no sense.
func (m Machine) check() error {
	refuse := func(field string, value any, problem, remedy string) error {
		return &arg.ConfigError{Of: "search", Field: field, Value: value, Problem: problem, Remedy: remedy}
	}
	if len(m.Devices) == 0 {
		return refuse("Devices", 0, "the machine has none", "want at least one")
	}
	known, threads := map[string]bool{}, 0
	named := func(name string) bool { return name == "" || known[name] }
	for i, d := range m.Devices {
		switch {
		case d.Name == "" || known[d.Name]:
			return refuse("Devices", d.Name, fmt.Sprintf("device %d has this name", i), "want a name that no other has")
		case d.Bytes < 0:
			return refuse("Devices", d.Bytes, "the bytes of "+d.Name, "want 1 or more, or 0 for no limit")
		case d.Threads < 0 || d.Threads > maxThreads-threads:
			return refuse("Devices", d.Threads, "the threads of "+d.Name, fmt.Sprintf("want 1 or more, and at most %d of all devices", maxThreads))
		case d.Speed != 0 && !(d.Speed >= 1/maxSpeed && d.Speed <= maxSpeed):
			return refuse("Devices", d.Speed, "the speed of "+d.Name, "want "+speeds+", such as 1 for that of the profile")
		}
		known[d.Name], threads = true, threads+d.threads()
	}
	for i, l := range m.Links {
		switch {
		case !named(l.From) || !named(l.To):
			return refuse("Links", fmt.Sprintf("%q and %q", l.From, l.To), fmt.Sprintf("what link %d joins", i), "want names of devices")
		case l.Latency < 0 || l.Latency > maxLatency:
			return refuse("Links", l.Latency, fmt.Sprintf("the latency of link %d", i), fmt.Sprintf("want 0 to %v", maxLatency))
		case !(l.Bandwidth >= 0) || math.IsInf(l.Bandwidth, 0):
			return refuse("Links", l.Bandwidth, fmt.Sprintf("the bandwidth of link %d", i), "want bytes a second")
		}
	}
	return nil
}

// hop is what a link between two devices costs.
type hop struct {
	latency   time.Duration
	bandwidth float64 // bytes a second; 0 is no bound
}

// takes is how long so many bytes are on a link, at most a day, so that sums of it are numbers.
func (h hop) takes(bytes int64) int64 {
	if h.bandwidth == 0 {
		return 0
	}
	return int64(min(float64(bytes)/h.bandwidth*float64(time.Second), float64(24*time.Hour)))
}

// between is the link of two devices.
func (m Machine) between(a, b string) (h hop) {
	if a == b {
		return hop{}
	}
	joins := func(l Link, a, b string) bool { return (l.From == "" || l.From == a) && (l.To == "" || l.To == b) }
	for _, l := range m.Links {
		if joins(l, a, b) || joins(l, b, a) {
			h = hop{l.Latency, l.Bandwidth}
		}
	}
	return h
}

// The file of a machine, as JSON. All fields are needed but count, from and to, and links, which cost
// nothing without:
//
//	{"version":1,
//	"devices":[{"name":"gpu","count":8,"bytes":80000000000,"threads":1,"speed":1}],
//	"links":[{"latency_us":5,"bytes_per_second":25e9},{"from":"gpu0","to":"gpu1","latency_us":2,"bytes_per_second":3e11}]}
type machineJSON struct {
	Version *int         `json:"version"`
	Devices []deviceJSON `json:"devices"`
	Links   []linkJSON   `json:"links"`
}

type deviceJSON struct {
	Name    *string  `json:"name"`
	Count   *int     `json:"count"`
	Bytes   *int64   `json:"bytes"`
	Threads *int     `json:"threads"`
	Speed   *float64 `json:"speed"`
}

type linkJSON struct {
	From      string   `json:"from"`
	To        string   `json:"to"`
	Latency   *float64 `json:"latency_us"`
	Bandwidth *float64 `json:"bytes_per_second"`
}

// What a machine may have: so that files cannot ask for more memory than there is, and times are numbers.
const (
	maxDevices = 1 << 16
	maxThreads = 1 << 17 // of all devices
	maxSpeed   = 1e6
	maxLatency = time.Hour
	speeds     = "0.000001 to 1000000"
)

// ParseMachine reads the file of a machine. A device with a count stands for as many, whose names end in
// their numbers. A number that is missing, or is not more than 0, is refused, but for a latency of 0. The
// error names the field.
func ParseMachine(data []byte) (Machine, error) {
	var file machineJSON
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		return Machine{}, fmt.Errorf("search: the machine is no JSON of one: %w; want {\"version\":1,\"devices\":[...],\"links\":[...]}", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Machine{}, errors.New("search: something follows the machine; want the end of the file")
	}
	if file.Version == nil || *file.Version != 1 {
		return Machine{}, errors.New(`search: "version" is missing or not known; want 1`)
	}
	var m Machine
	for i, f := range file.Devices {
		at := fmt.Sprintf("devices[%d]", i)
		switch {
		case f.Name == nil || *f.Name == "":
			return m, missing(at, "name", "a name")
		case f.Count != nil && (*f.Count < 1 || *f.Count > maxDevices):
			return m, wrong(at, "count", *f.Count, fmt.Sprintf("1 to %d", maxDevices))
		case f.Bytes == nil:
			return m, missing(at, "bytes", "the most that it may hold")
		case *f.Bytes < 1:
			return m, wrong(at, "bytes", *f.Bytes, "1 or more")
		case f.Threads == nil:
			return m, missing(at, "threads", "how many it has, such as 1")
		case *f.Threads < 1 || *f.Threads > maxThreads:
			return m, wrong(at, "threads", *f.Threads, fmt.Sprintf("1 to %d", maxThreads))
		case f.Speed == nil:
			return m, missing(at, "speed", "how many times as fast it is as what was measured, such as 1")
		case !(*f.Speed >= 1/maxSpeed && *f.Speed <= maxSpeed):
			return m, wrong(at, "speed", *f.Speed, speeds)
		}
		one := Device{Name: *f.Name, Bytes: *f.Bytes, Threads: *f.Threads, Speed: *f.Speed}
		if f.Count == nil {
			m.Devices = append(m.Devices, one)
			continue
		}
		if len(m.Devices)+*f.Count > maxDevices {
			return m, fmt.Errorf("search: more than %d devices; want at most as many", maxDevices)
		}
		for k := range *f.Count {
			one.Name = fmt.Sprint(*f.Name, k)
			m.Devices = append(m.Devices, one)
		}
	}
	if len(m.Devices) > maxDevices {
		return m, fmt.Errorf("search: %d devices; want at most %d", len(m.Devices), maxDevices)
	}
	for i, f := range file.Links {
		at := fmt.Sprintf("links[%d]", i)
		switch {
		case f.Latency == nil:
			return m, missing(at, "latency_us", "microseconds")
		case !(*f.Latency >= 0 && *f.Latency <= us(maxLatency)):
			return m, wrong(at, "latency_us", *f.Latency, fmt.Sprintf("0 to %.0f microseconds", us(maxLatency)))
		case f.Bandwidth == nil:
			return m, missing(at, "bytes_per_second", "the bandwidth")
		case *f.Bandwidth <= 0:
			return m, wrong(at, "bytes_per_second", *f.Bandwidth, "more than 0")
		}
		m.Links = append(m.Links, Link{From: f.From, To: f.To, Latency: time.Duration(*f.Latency * float64(time.Microsecond)), Bandwidth: *f.Bandwidth})
	}
	return m, m.check()
}

// us is microseconds.
func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func missing(at, field, want string) error {
	return fmt.Errorf("search: %s.%s is missing; want %s", at, field, want)
}

func wrong(at, field string, value any, want string) error {
	return fmt.Errorf("search: %s.%s is %v; want %s", at, field, value, want)
}
