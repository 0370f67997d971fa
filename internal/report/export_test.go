package report

// Building keeps pages and events from being built until release is called.
func (l *Live) Building() (release func()) {
	l.building.Lock()
	return l.building.Unlock
}
