//go:build !linux

package http1

// watcher is for Linux. Elsewhere a client that leaves is noticed when it is
// written to.
type watcher struct{}

func (w *watcher) start() error { return nil }
func (w *watcher) add(*conn)    {}
func (w *watcher) remove(*conn) {}
func (w *watcher) stop()        {}
