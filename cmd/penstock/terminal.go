package main

import (
	"io"
	"os"
	"syscall"
	"unsafe"
)

// usualWidth is the width of a terminal that does not tell its own, and of what is drawn elsewhere.
const usualWidth = 80

// terminalWidth is how many characters a line of w has, and whether w is a terminal at all. Other
// character devices, such as /dev/null, are none.
func terminalWidth(w io.Writer) (columns int, ok bool) {
	if o, ok := w.(*output); ok {
		w = o.to
	}
	f, ok := w.(*os.File)
	if !ok {
		return usualWidth, false
	}
	var size struct{ rows, columns, x, y uint16 } // winsize of ioctl_tty(2)
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size))); errno != 0 {
		return usualWidth, false
	}
	if size.columns == 0 {
		return usualWidth, true
	}
	return int(size.columns), true
}
