package search

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"penstock.example/internal/arg"
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
	// Bytes is the most that it may hold; 0 is no limit. Stages that share it have equal parts.
	Bytes int64
	// Threads is how many threads it has; 0 is 1. It is of no use for what was measured with more. Where
	// that was fewer, and there are more stages than devices, stages share it, each as a device of its own.
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
	Version json.RawMessage `json:"version"`
	Devices []deviceJSON    `json:"devices"`
	Links   []linkJSON      `json:"links"`
}

type deviceJSON struct {
	Name    json.RawMessage `json:"name"`
	Count   json.RawMessage `json:"count"`
	Bytes   json.RawMessage `json:"bytes"`
	Threads json.RawMessage `json:"threads"`
	Speed   json.RawMessage `json:"speed"`
}

type linkJSON struct {
	From      string          `json:"from"`
	To        string          `json:"to"`
	Latency   json.RawMessage `json:"latency_us"`
	Bandwidth json.RawMessage `json:"bytes_per_second"`
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
		return Machine{}, fmt.Errorf("search: the machine is no JSON of one: %s; want {\"version\":1,\"devices\":[...],\"links\":[...]}", inWords(err))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Machine{}, errors.New("search: something follows the machine; want the end of the file")
	}
	if version, err := wholeOf("", "version", file.Version, "1", 1, 1); err != nil || version != 1 {
		return Machine{}, errors.New(`search: "version" is missing or not known; want 1`)
	}
	if len(file.Devices) == 0 {
		return Machine{}, errors.New(`search: "devices" is empty or missing; want at least one`)
	}
	var m Machine
	for i, f := range file.Devices {
		one, count, err := f.read(fmt.Sprintf("devices[%d]", i))
		switch {
		case err != nil:
			return m, err
		case len(m.Devices)+max(count, 1) > maxDevices:
			return m, fmt.Errorf("search: more than %d devices; want at most as many", maxDevices)
		case count == 0:
			m.Devices = append(m.Devices, one)
		}
		name := one.Name
		for k := range count {
			one.Name = fmt.Sprint(name, k)
			m.Devices = append(m.Devices, one)
		}
	}
	for i, f := range file.Links {
		one, err := f.read(fmt.Sprintf("links[%d]", i))
		if err != nil {
			return m, err
		}
		m.Links = append(m.Links, one)
	}
	return m, m.check()
}

// read reads a device, and how many of it there are; 0 where it is said once.
func (f deviceJSON) read(at string) (d Device, count int, err error) {
	switch {
	case absent(f.Name):
		return d, 0, missing(at, "name", "a name")
	case json.Unmarshal(f.Name, &d.Name) != nil:
		return d, 0, wrong(at, "name", string(f.Name), "a text")
	case d.Name == "":
		return d, 0, missing(at, "name", "a name")
	case strings.ContainsFunc(d.Name, unicode.IsControl):
		return d, 0, wrong(at, "name", strconv.Quote(d.Name), "a name without control characters")
	}
	if !absent(f.Count) {
		n, err := wholeOf(at, "count", f.Count, "how many there are", 1, maxDevices)
		if err != nil {
			return d, 0, err
		}
		count = int(n)
	}
	if d.Bytes, err = wholeOf(at, "bytes", f.Bytes, "the most that it may hold", 1, math.MaxInt64); err != nil {
		return d, 0, err
	}
	threads, err := wholeOf(at, "threads", f.Threads, "how many it has, such as 1", 1, maxThreads)
	if err != nil {
		return d, 0, err
	}
	d.Threads = int(threads)
	d.Speed, err = numberOf(at, "speed", f.Speed, "how many times as fast it is as what was measured, such as 1", speeds,
		func(x float64) bool { return x >= 1/maxSpeed && x <= maxSpeed })
	return d, count, err
}

// read reads a link.
func (f linkJSON) read(at string) (l Link, err error) {
	latency, err := numberOf(at, "latency_us", f.Latency, "microseconds", fmt.Sprintf("0 to %.0f microseconds", us(maxLatency)),
		func(x float64) bool { return x >= 0 && x <= us(maxLatency) })
	if err != nil {
		return l, err
	}
	bandwidth, err := numberOf(at, "bytes_per_second", f.Bandwidth, "the bandwidth", "more than 0", func(x float64) bool { return x > 0 })
	return Link{From: f.From, To: f.To, Latency: time.Duration(latency * float64(time.Microsecond)), Bandwidth: bandwidth}, err
}

// us is microseconds.
func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// absent says that a field is left out, or null.
func absent(text json.RawMessage) bool { return len(text) == 0 || string(text) == "null" }

// numberOf reads a number that fits.
func numberOf(at, field string, text json.RawMessage, what, want string, fits func(x float64) bool) (x float64, err error) {
	switch {
	case absent(text):
		return 0, missing(at, field, what)
	case json.Unmarshal(text, &x) != nil:
		return 0, wrong(at, field, string(text), "a number, "+want)
	case !fits(x):
		return 0, wrong(at, field, x, want)
	}
	return x, nil
}

// wholeOf reads a whole number from least to most, which may be written as 80e9.
func wholeOf(at, field string, text json.RawMessage, what string, least, most int64) (int64, error) {
	want := fmt.Sprintf("%d to %d", least, most)
	if most == math.MaxInt64 {
		want = fmt.Sprintf("%d or more", least)
	}
	var x float64
	switch {
	case absent(text):
		return 0, missing(at, field, what)
	case json.Unmarshal(text, &x) != nil || x != math.Trunc(x) || math.Abs(x) >= 1<<63:
		return 0, wrong(at, field, string(text), "a whole number, "+want)
	}
	n, err := strconv.ParseInt(string(text), 10, 64) // to the last digit
	if err != nil {
		n = int64(x)
	}
	if n < least || n > most {
		return 0, wrong(at, field, string(text), want)
	}
	return n, nil
}

// inWords is an error of package json without the names of Go's types.
func inWords(err error) string {
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) {
		return fmt.Sprintf("%q is %s", kind.Field, article(kind.Value))
	}
	return strings.TrimPrefix(err.Error(), "json: ")
}

// article is a kind of JSON value with its article.
func article(kind string) string {
	if strings.HasPrefix(kind, "a") || strings.HasPrefix(kind, "o") {
		return "an " + kind
	}
	return "a " + kind
}

func missing(at, field, want string) error {
	return fmt.Errorf("search: %s.%s is missing; want %s", at, field, want)
}

func wrong(at, field string, value any, want string) error {
	return fmt.Errorf("search: %s.%s is %v; want %s", at, field, value, want)
}
