package torchtest

import (
	"fmt"
	"os"
	"strings"
	"sync"

	"penstock.example/torch"
)

// chosen lists the devices in PENSTOCK_TEST_DEVICES, such as cuda:0 or cuda:0,cuda:1.
var chosen = sync.OnceValue(func() (list []torch.Device) {
	text := os.Getenv("PENSTOCK_TEST_DEVICES")
	if text == "" {
		return nil
	}
	for name := range strings.SplitSeq(text, ",") {
		d, err := torch.ParseDevice(name)
		if err == nil {
			err = d.Usable()
		}
		if err != nil {
			panic(fmt.Sprintf("PENSTOCK_TEST_DEVICES=%s: %v", text, err))
		}
		list = append(list, d)
	}
	return list
})

// Device is the i-th test device: cpu:0, cpu:1 and so on, or the devices in PENSTOCK_TEST_DEVICES
// in turn. If there is one device, all stages of a test share it.
func Device(i int) torch.Device {
	if list := chosen(); len(list) > 0 {
		return list[i%len(list)]
	}
	return torch.CPU(i)
}
