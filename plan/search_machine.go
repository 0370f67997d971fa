package plan

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"penstock.example/internal/arg"
)

// Machine is the devices and links to train on.
type Machine struct {
	Devices []Device // at least one; stages are placed in this order
	Links   []Link   // between two devices the last that joins them counts; without one a transfer costs nothing
}

// Device is a device of a machine.
type Device struct {
	Name string // unique
	// Bytes is the most that it may hold; 0 is no limit. Stages that share the device have equal
	// parts.
	Bytes int64
	// Threads is its number of threads; 0 is 1. It must have as many as the profile was measured
	// with. If it has several times as many, and the pipeline has more stages than the machine has
	// devices, stages share it, each as a device of its own.
	Threads int
	// Speed is relative to the measured device; 0 is 1.
	Speed float64
}

// Link is the cost of moving values between two devices, in either direction.
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

// check returns an *arg.ConfigError for a machine that makes no sense.
func (m Machine) check() error {
	refuse := func(field string, value any, problem, remedy string) error {
		return &arg.ConfigError{Of: "plan", Field: field, Value: value, Problem: problem, Remedy: remedy}
	}
	if len(m.Devices) == 0 {
		return refuse("Devices", 0, "the machine has none", "want at least one")
	}
	known, threads := map[string]bool{}, 0
	named := func(name string) bool { return name == "" || known[name] }
	for i, d := range m.Devices {
		switch {
		case d.Name == "" || known[d.Name]:
			return refuse("Devices", d.Name, fmt.Sprintf("device %d has this name", i),
				"want a name that no other has")
		case d.Bytes < 0:
			return refuse("Devices", d.Bytes, "the bytes of "+d.Name, "want 1 or more, or 0 for no limit")
		case d.Threads < 0 || d.Threads > maxThreads-threads:
			return refuse("Devices", d.Threads, "the threads of "+d.Name,
				fmt.Sprintf("want 1 or more, and at most %d of all devices", maxThreads))
		case d.Speed != 0 && !(d.Speed >= 1/maxSpeed && d.Speed <= maxSpeed):
			return refuse("Devices", d.Speed, "the speed of "+d.Name,
				"want "+speeds+", such as 1 for that of the profile")
		}
		known[d.Name], threads = true, threads+d.threads()
	}
	for i, l := range m.Links {
		switch {
		case !named(l.From) || !named(l.To):
			return refuse("Links", fmt.Sprintf("%q and %q", l.From, l.To),
				fmt.Sprintf("what link %d joins", i), "want names of devices")
		case l.Latency < 0 || l.Latency > maxLatency:
			return refuse("Links", l.Latency, fmt.Sprintf("the latency of link %d", i),
				fmt.Sprintf("want 0 to %v", maxLatency))
		case !(l.Bandwidth >= 0) || math.IsInf(l.Bandwidth, 0):
			return refuse("Links", l.Bandwidth, fmt.Sprintf("the bandwidth of link %d", i),
				"want bytes a second")
		}
	}
	return nil
}

// linkCost is the cost of a link between two devices.
type linkCost struct {
	latency   time.Duration
	bandwidth float64 // bytes a second; 0 is no bound
}

// transferTime returns how long bytes occupy a link, at most a day, so that sums fit an int64.
func (h linkCost) transferTime(bytes int64) int64 {
	if h.bandwidth == 0 {
		return 0
	}
	return int64(min(float64(bytes)/h.bandwidth*float64(time.Second), float64(24*time.Hour)))
}

// between returns the link between two devices.
func (m Machine) between(a, b string) (h linkCost) {
	if a == b {
		return linkCost{}
	}
	joins := func(l Link, a, b string) bool { return (l.From == "" || l.From == a) && (l.To == "" || l.To == b) }
	for _, l := range m.Links {
		if joins(l, a, b) || joins(l, b, a) {
			h = linkCost{l.Latency, l.Bandwidth}
		}
	}
	return h
}

// Largest returns the most bytes that a device may hold if none may hold more than limit; 0 is no
// limit.
func (m Machine) Largest(limit int64) (most int64) {
	for _, d := range m.Devices {
		switch {
		case d.Bytes == 0 && limit == 0:
			return 0
		case d.Bytes == 0 || limit > 0 && limit < d.Bytes:
			most = max(most, limit)
		default:
			most = max(most, d.Bytes)
		}
	}
	return most
}

// withOneMore returns the machine with one more device like its last one.
func (m Machine) withOneMore() Machine {
	d := m.Devices[len(m.Devices)-1]
	for taken := true; taken; {
		d.Name += "+"
		taken = slices.ContainsFunc(m.Devices, func(o Device) bool { return o.Name == d.Name })
	}
	return Machine{append(slices.Clone(m.Devices), d), m.Links}
}

// Bounds of a machine. Files cannot ask for too much memory, and times fit an int64.
const (
	maxDevices = 1 << 16
	maxThreads = 1 << 17 // of all devices
	maxSpeed   = 1e6
	maxLatency = time.Hour
	speeds     = "0.000001 to 1000000"
)

// ParseMachine reads a machine from JSON:
//
//	{"version":1,
//	"devices":[{"name":"gpu","count":8,"bytes":80e9,"threads":1,"speed":1}],
//	"links":[{"latency_us":5,"bytes_per_second":25e9},{"from":"gpu0","to":"gpu1","latency_us":2,"bytes_per_second":3e11}]}
//
// All fields are needed except count, from, to and links; without links transfers cost nothing. A
// device with a count stands for that many, with names that end in their numbers. The error has the
// path of the wrong field, such as devices[0].bytes, its value, and the values that are accepted.
func ParseMachine(data []byte) (m Machine, err error) {
	defer func() {
		if err != nil {
			m, err = Machine{}, fmt.Errorf("plan: %w", err)
		}
	}()
	file, err := arg.Object("", data, "version", "devices", "links")
	if err != nil {
		return m, err
	}
	if _, err := wholeOf("", "version", file["version"], "1", 1, 1); err != nil {
		return m, err
	}
	if m.Devices, err = readDevices(file["devices"]); err != nil || arg.Absent(file["links"]) {
		return m, err
	}
	links, err := arg.Elements("links", file["links"])
	if err != nil {
		return m, err
	}
	for i, text := range links {
		one, err := readLink(fmt.Sprintf("links[%d]", i), text, m.Devices)
		if err != nil {
			return m, err
		}
		m.Links = append(m.Links, one)
	}
	return m, nil
}

func readDevices(text json.RawMessage) (all []Device, err error) {
	const some = `at least one device, such as {"name":"gpu","bytes":80e9,"threads":1,"speed":1}`
	if arg.Absent(text) {
		return nil, missing("", "devices", some)
	}
	list, err := arg.Elements("devices", text)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, wrong("", "devices", text, some)
	}
	threads, named := 0, map[string]string{}
	for i, text := range list {
		at := fmt.Sprintf("devices[%d]", i)
		one, count, err := readDevice(at, text)
		if err != nil {
			return nil, err
		}
		if most := maxDevices - len(all); max(count, 1) > most {
			return nil, fmt.Errorf("%s: with %d of it there are more than %d devices; want at most as many", at, max(count, 1), maxDevices)
		}
		name := one.Name
		for k := range max(count, 1) {
			if count > 0 {
				one.Name = fmt.Sprint(name, k)
			}
			if other, twice := named[one.Name]; twice {
				return nil, fmt.Errorf("%s.name is %q, and %s is a device of %s; want a name that no other has", at, name, one.Name, other)
			}
			if named[one.Name], threads = at, threads+one.Threads; threads > maxThreads {
				return nil, fmt.Errorf("%s.threads is %d, and all devices have more than %d; want at most %[3]d of all", at, one.Threads, maxThreads)
			}
			all = append(all, one)
		}
	}
	return all, nil
}

// readDevice reads a device and its count; 0 without a count.
func readDevice(at string, text json.RawMessage) (d Device, count int, err error) {
	f, err := arg.Object(at, text, "name", "count", "bytes", "threads", "speed")
	if err != nil {
		return d, 0, err
	}
	if d.Name, err = nameOf(at, "name", f["name"], "a name"); err != nil {
		return d, 0, err
	}
	if d.Name == "" {
		return d, 0, missing(at, "name", "a name")
	}
	if !arg.Absent(f["count"]) {
		n, err := wholeOf(at, "count", f["count"], "how many there are", 1, maxDevices)
		if err != nil {
			return d, 0, err
		}
		count = int(n)
	}
	if d.Bytes, err = wholeOf(at, "bytes", f["bytes"], "the most that it may hold, such as 80e9", 1,
		math.MaxInt64); err != nil {
		return d, 0, err
	}
	threads, err := wholeOf(at, "threads", f["threads"], "how many it has, such as 1", 1, maxThreads)
	if err != nil {
		return d, 0, err
	}
	d.Threads = int(threads)
	d.Speed, err = numberOf(at, "speed", f["speed"],
		"how many times as fast it is as what was measured, such as 1", speeds,
		func(x float64) bool { return x >= 1/maxSpeed && x <= maxSpeed })
	return d, count, err
}

func readLink(at string, text json.RawMessage, devices []Device) (l Link, err error) {
	f, err := arg.Object(at, text, "from", "to", "latency_us", "bytes_per_second")
	if err != nil {
		return l, err
	}
	for _, end := range []struct {
		field string
		name  *string
	}{{"from", &l.From}, {"to", &l.To}} {
		if *end.name, err = nameOf(at, end.field, f[end.field], "the name of a device"); err != nil {
			return l, err
		}
		if *end.name != "" && !slices.ContainsFunc(devices, func(d Device) bool { return d.Name == *end.name }) {
			return l, wrong(at, end.field, f[end.field],
				"the name of a device, "+names(devices)+", or it left out for any")
		}
	}
	latency, err := numberOf(at, "latency_us", f["latency_us"], "microseconds",
		fmt.Sprintf("0 to %.0f microseconds", searchMicros(maxLatency)),
		func(x float64) bool { return x >= 0 && x <= searchMicros(maxLatency) })
	if err != nil {
		return l, err
	}
	l.Latency = time.Duration(latency * float64(time.Microsecond))
	l.Bandwidth, err = numberOf(at, "bytes_per_second", f["bytes_per_second"],
		"the bandwidth, such as 25e9", "more than 0", func(x float64) bool { return x > 0 })
	return l, err
}

// names lists devices; of many the first two and the last.
func names(devices []Device) string {
	var list []string
	for _, d := range devices {
		list = append(list, strconv.Quote(d.Name))
	}
	if n := len(list); n > 6 {
		return strings.Join(list[:2], ", ") + ", ... " + list[n-1]
	}
	return strings.Join(list, ", ")
}

// searchMicros converts to microseconds.
func searchMicros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// nameOf reads a name; "" if it is left out.
func nameOf(at, field string, text json.RawMessage, want string) (name string, err error) {
	switch {
	case arg.Absent(text):
	case json.Unmarshal(text, &name) != nil:
		return "", wrong(at, field, text, want+", in quotes")
	case strings.ContainsFunc(name, unicode.IsControl):
		return "", wrong(at, field, text, want+" without control characters")
	}
	return name, nil
}

// numberOf reads a number that fits.
func numberOf(at, field string, text json.RawMessage, what, want string,
	fits func(x float64) bool) (x float64, err error) {
	switch {
	case arg.Absent(text):
		return 0, missing(at, field, what)
	case json.Unmarshal(text, &x) != nil:
		return 0, wrong(at, field, text, "a number, "+want)
	case !fits(x):
		return 0, wrong(at, field, text, want)
	}
	return x, nil
}

// wholeOf reads a whole number from least to most, which may be written as 80e9.
func wholeOf(at, field string, text json.RawMessage, what string, least, most int64) (int64, error) {
	want := fmt.Sprintf("%d to %d", least, most)
	switch most {
	case math.MaxInt64:
		want = fmt.Sprintf("%d or more", least)
	case least:
		want = fmt.Sprint(least)
	}
	var x float64
	switch {
	case arg.Absent(text):
		return 0, missing(at, field, what)
	case json.Unmarshal(text, &x) != nil || x != math.Trunc(x) || math.Abs(x) >= 1<<63:
		return 0, wrong(at, field, text, "a whole number, "+want)
	}
	n, err := strconv.ParseInt(string(text), 10, 64) // to the last digit
	if err != nil {
		n = int64(x)
	}
	if n < least || n > most {
		return 0, wrong(at, field, text, want)
	}
	return n, nil
}

func missing(at, field, want string) error {
	return fmt.Errorf("%s is missing; want %s", arg.Path(at, field), want)
}

func wrong(at, field string, value json.RawMessage, want string) error {
	return fmt.Errorf("%s is %s; want %s", arg.Path(at, field), arg.Shown(value), want)
}
