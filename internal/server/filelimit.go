package server

import (
	"fmt"
	"time"
)

// Files, sockets among them, that this process may have open, from the first one on:
//
//	requests    up to limit-reserve: beyond, idle connections to engines are closed,
//	            then those of clients that wait for their client and have been silent for
//	            a second; where there is none, requests that would go to an engine are
//	            refused with 503
//	probes      up to limit-spare: beyond, such connections of clients are closed whatever
//	            their age
//	the rest    connections that were accepted and for which another one is on its way
//	            out, the port for metrics, checks of workers, the log, files that are read
//
// A request counts its client's connection, and those to engines from when it is about
// to open them: one that waits holds none. Connections that are kept warm to engines may
// be those that running requests have counted; what is open beyond these is idle.
//
// Which client's connection is closed is said at http1.Server.CloseIdle (with --http-stack net, in package nethttp): never one whose
// request was read whole and runs or waits in the queue.

// reserve is what requests leave free.
func reserve(limit int64) int64 { return max(limit/10, 32) }

// spare is what clients' connections leave free, probes among them.
func spare(limit int64) int64 { return max(limit/20, 26) }

// maxScrapers is how many connections the port for metrics may have.
func maxScrapers(limit int) int { return int(min(max(reserve(int64(limit))/8, 4), 64)) }

// requestsWithin is about how many requests at once a limit on files is good for.
func requestsWithin(limit int64, legs int64) int64 { return max(limit-reserve(limit), 0) / (1 + legs) }

// manyRequests is how many make a limit on files no reason for a warning.
const manyRequests = 1000

// legsPerRequest is how many connections to engines an ordinary request has.
func (s *Server) legsPerRequest() int64 {
	if s.cfg.Fleet.PDDisaggregation {
		return 2
	}
	return 1
}

// warnFileLimit warns of a small limit on files, at the start.
func (s *Server) warnFileLimit() {
	limit := int64(s.opts.MaxFiles)
	if n := requestsWithin(limit, s.legsPerRequest()); n < manyRequests {
		s.log.Warn(fmt.Sprintf("%d files may be open (ulimit -n): good for about %d requests at once", limit, n))
	}
}

// filesInUse is how many files clients and their requests have, with what is kept warm for
// these.
func (s *Server) filesInUse() int64 {
	return s.conns.Load() - s.main.Leaving() + max(s.legs.Load(), s.opts.Engines.Open())
}

// filesOverLimit is how many files more than requests may have are in use.
func (s *Server) filesOverLimit() int {
	limit := int64(s.opts.MaxFiles)
	return int(s.filesInUse() - (limit - reserve(limit)))
}

// filesMissing is by how many files more than requests may have are in use, after idle
// connections to engines were closed.
func (s *Server) filesMissing() int {
	over := s.filesOverLimit()
	if over <= 0 {
		return 0
	}
	if idle := int(s.opts.Engines.Open() - s.legs.Load()); idle > 0 {
		s.opts.Engines.CloseIdle(min(over, idle))
		over = s.filesOverLimit()
	}
	return max(over, 0)
}

// filesShort tells whether requests have all the files that they may have.
func (s *Server) filesShort() bool { return s.filesMissing() > 0 }

// full tells whether clients have all the files that they may have.
func (s *Server) full() bool {
	limit := int64(s.opts.MaxFiles)
	return s.filesInUse() > limit-spare(limit)
}

// makeRoom closes clients' connections for n files that a request has just taken. A whole
// request goes before those that are still coming.
func (s *Server) makeRoom(n int) bool {
	short := min(s.filesMissing(), n)
	return short == 0 || s.main.CloseIdle(short) >= short
}

// hasFile tells whether there are files for a request that has come. Connections
// without one give way.
func (s *Server) hasFile() bool {
	if s.makeRoom(1) {
		return true
	}
	s.logFilesShort()
	return false
}

// TakeFiles counts n connections that are about to be opened to engines, until
// GiveFiles. It is false, and counts none, if there are not that many files left and
// not that many connections without a request.
func (s *Server) TakeFiles(n int) bool {
	s.legs.Add(int64(n))
	if !s.makeRoom(n) {
		s.legs.Add(-int64(n))
		s.logFilesShort()
		return false
	}
	return true
}

// GiveFiles counts n connections no more.
func (s *Server) GiveFiles(n int) { s.legs.Add(-int64(n)) }

// filesShortLogEvery is how often the log tells that requests are refused for want of files.
const filesShortLogEvery = time.Minute

// logFilesShort logs that requests are refused, once in a while.
func (s *Server) logFilesShort() {
	now := time.Now().UnixNano()
	last := s.filesShortAt.Load()
	if last != 0 && now-last < int64(filesShortLogEvery) || !s.filesShortAt.CompareAndSwap(last, now) {
		s.filesShortMore.Add(1)
		return
	}
	s.log.Warn("requests are refused: the limit on open files (ulimit -n) is almost reached", "limit", s.opts.MaxFiles,
		"clients", s.conns.Load(), "engines", s.legs.Load(), "refused_since_last_told", s.filesShortMore.Swap(0))
}
