// Package redis keeps the record of a cluster in Redis or Valkey.
//
// The record is a hash with the fields "revision" and "value" under the key
// sluice:NAME:gate. A Lua script compares and writes, so that both are one step for the
// server. It is sent as text each time: a server that was restarted has forgotten what it
// knew by digest.
//
// There is one server, the primary. A replica that takes over may lack the last writes,
// and a server without persistence forgets the record with its end; the users of a store
// reckon with both.
package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/gomodule/redigo/redis"

	"github.com/sluice-router/sluice/internal/cluster/store"
)

// Store implements store.Store.
type Store struct {
	url   store.URL
	key   string
	calls *store.Calls

	// Of the call that runs.
	conn    net.Conn   // nil without a connection
	answers *bounded   // reads from conn
	resp    redis.Conn // speaks Redis' protocol on answers
}

var _ store.Store = (*Store)(nil)

// New returns the store for the cluster of that name. The server is not asked yet.
func New(u store.URL, name string) (*Store, error) {
	if u.Kind != store.Redis || len(u.Hosts) != 1 {
		return nil, fmt.Errorf("%s is no Redis", u)
	}
	if err := store.CheckName(name); err != nil {
		return nil, err
	}
	return &Store{url: u, key: "sluice:" + name + ":gate", calls: store.NewCalls()}, nil
}

// The scripts answer a word and what belongs to it.
const (
	// look puts the revision of the record into now, "" without one.
	look = `
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'none' and kind ~= 'hash' then return {'foreign', 'a ' .. kind} end
local now = redis.call('HGET', KEYS[1], 'revision') or ''
if kind == 'hash' and now == '' then return {'foreign', 'a hash without a revision'} end
`
	// ARGV: the largest value.
	readScript = look + `
if now == '' then return {'none'} end
if redis.call('HSTRLEN', KEYS[1], 'value') > tonumber(ARGV[1]) then return {'foreign', 'a value that is too large'} end
return {'record', now, redis.call('HGET', KEYS[1], 'value') or ''}
`
	// ARGV: the expected revision, the new one, the value.
	writeScript = look + `
if now ~= ARGV[1] then return {'conflict', now} end
redis.call('HSET', KEYS[1], 'revision', ARGV[2], 'value', ARGV[3])
return {'written'}
`
)

// Read implements store.Store.
func (s *Store) Read(ctx context.Context) (r store.Record, err error) {
	err = s.calls.Do(ctx, func(ctx context.Context) error {
		answer, _, err := s.run(ctx, readScript, store.MaxValue)
		switch {
		case err != nil:
			return err
		case answer[0] == "none":
			return nil
		case answer[0] == "record" && len(answer) == 3 && store.IsRevision(answer[1]):
			r = store.Record{Revision: answer[1], Value: []byte(answer[2])}
			return nil
		}
		return foreign(answer)
	})
	return r, err
}

// Write implements store.Store.
func (s *Store) Write(ctx context.Context, value []byte, revision string) (newRevision string, err error) {
	if err := store.CheckWrite(value, revision); err != nil {
		return "", err
	}
	newRevision = store.NewRevision()
	err = s.calls.Do(ctx, func(ctx context.Context) error {
		answer, again, err := s.run(ctx, writeScript, revision, newRevision, value)
		switch {
		case err != nil:
			return err
		case answer[0] == "written":
			return nil
		case answer[0] == "conflict" && len(answer) == 2:
			switch {
			case again && answer[1] == newRevision:
				return nil // by the first try, whose answer was lost
			case again:
				return store.Unavailable(errors.New("a lost answer, and meanwhile the record was changed"))
			}
			return store.ErrConflict
		}
		return foreign(answer)
	})
	if err != nil {
		return "", err
	}
	return newRevision, nil
}

// foreign makes an error of an answer that is none of those expected.
func foreign(answer []string) error {
	return fmt.Errorf("%w: %.80q", store.ErrForeign, answer[1:])
}

// run runs a script. A connection that turns out to be closed is replaced once; again says
// that the script may have run on the first one.
func (s *Store) run(ctx context.Context, script string, args ...any) (answer []string, again bool, err error) {
	if s.conn != nil {
		if answer, err = s.runOnce(ctx, script, args); err == nil || !errors.Is(err, store.ErrUnavailable) || ctx.Err() != nil {
			return answer, false, err
		}
		again = true
	}
	if err := s.connect(ctx); err != nil {
		return nil, again, err
	}
	answer, err = s.runOnce(ctx, script, args)
	return answer, again, err
}

// runOnce runs a script on the connection, which is dropped if that fails.
func (s *Store) runOnce(ctx context.Context, script string, args []any) (answer []string, err error) {
	err = s.use(ctx, func() error {
		answer, err = redis.Strings(s.resp.Do("EVAL", append([]any{script, 1, s.key}, args...)...))
		if err == nil && len(answer) == 0 {
			err = errors.New("an empty answer")
		}
		return err
	})
	return answer, err
}

// use calls f, which uses the connection. That is closed when ctx ends, and dropped if f
// fails.
func (s *Store) use(ctx context.Context, f func() error) error {
	s.answers.allow()
	conn := s.conn // the function may run when it is dropped already
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	err := f()
	if !stop() || err != nil {
		s.drop()
	}
	return classify(ctx, err)
}

// connect makes the connection.
func (s *Store) connect(ctx context.Context) error {
	user, password, err := s.url.Credentials()
	if err != nil {
		return err
	}
	config, err := s.url.TLSConfig()
	if err != nil {
		return err
	}
	if config == nil {
		s.conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", s.url.Hosts[0])
	} else {
		s.conn, err = (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", s.url.Hosts[0])
	}
	if err != nil {
		s.conn = nil
		return classify(ctx, err)
	}
	s.answers = &bounded{Conn: s.conn}
	s.resp = redis.NewConn(s.answers, 0, 0)
	return s.use(ctx, func() error {
		if password != "" {
			credentials := []any{user, password}
			if user == "" {
				credentials = credentials[1:]
			}
			if _, err := s.resp.Do("AUTH", credentials...); err != nil {
				return err
			}
		}
		if s.url.Database == 0 {
			return nil
		}
		_, err := s.resp.Do("SELECT", s.url.Database)
		return err
	})
}

func (s *Store) drop() {
	if s.conn != nil {
		s.conn.Close()
	}
	s.conn, s.answers, s.resp = nil, nil, nil
}

// Close implements store.Store.
func (s *Store) Close() error {
	s.calls.Close(s.drop)
	return nil
}

// String implements store.Store.
func (s *Store) String() string { return s.url.String() + " " + s.key }

// refusals begin the errors after which trying again does not help by itself.
var refusals = []string{
	"NOAUTH", "WRONGPASS", "NOPERM", "ERR invalid password", "ERR AUTH", "ERR Client sent AUTH",
	"ERR DB index", "ERR SELECT", "ERR invalid DB", "ERR unknown command", "DENIED",
	"MOVED", "ASK", "CROSSSLOT",
}

// classify makes one of the package store's errors of any other.
func classify(ctx context.Context, err error) error {
	var answer redis.Error
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return store.Ended(ctx)
	case !errors.As(err, &answer):
		if store.IsTLSRefusal(err) {
			return store.Refused(err)
		}
		return store.Unavailable(err)
	}
	err = fmt.Errorf("%.200s", string(answer))
	for _, prefix := range refusals {
		if strings.HasPrefix(string(answer), prefix) {
			if prefix == "MOVED" || prefix == "ASK" {
				err = fmt.Errorf("the server is part of a Redis Cluster, and another of its servers has the record: %w", err)
			}
			return store.Refused(err)
		}
	}
	return store.Unavailable(err)
}
