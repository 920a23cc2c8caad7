package cluster

import "time"

// ClusterView is what a keeper tells all members for operators, and Status is what one
// member knows, for its own.
type ClusterView struct {
	Epoch     Epoch        `json:"epoch"`
	Keeper    string       `json:"keeper"`  // by name
	Standby   string       `json:"standby"` // "": none answers
	Deciding  bool         `json:"deciding"`
	WhyNot    string       `json:"why_not,omitempty"`
	Members   []MemberView `json:"members"`
	Shares    uint64       `json:"shares_version"`
	Proposed  bool         `json:"shares_proposed,omitempty"` // some have not taken them yet
	Claims    []ClaimView  `json:"claims,omitempty"`
	Waiting   int          `json:"waiting"`
	Suspended int          `json:"suspended"` // waiters of silent members
	Settings  string       `json:"settings"`  // whose configuration is in force, by name
}

// MemberView is one member, as its keeper sees it.
type MemberView struct {
	Member
	State      string        `json:"state"` // answering, silent, lost, reporting, joining
	Round      time.Duration `json:"round_trip_ns"`
	Heard      time.Duration `json:"last_answered_ns"` // ago
	Holds      int           `json:"holds"`
	Waiting    int           `json:"waiting"`
	Generation uint64        `json:"config_generation,omitempty"`
	Digest     string        `json:"config_digest"`
	Differs    bool          `json:"config_differs,omitempty"`
}

// ClaimView is what is set aside on one rank for a member that is lost.
type ClaimView struct {
	Member string `json:"member"`
	Rank   string `json:"rank"`
	Load
	Until time.Duration `json:"until_ns"` // from now
}

// Status is what this member knows.
type Status struct {
	Self     Member        `json:"self"`
	Role     string        `json:"role"` // keeper, standby, member, alone, joining
	Promised Epoch         `json:"promised"`
	Heard    time.Duration `json:"keeper_heard_ns"` // ago; negative: never
	Fallback string        `json:"fallback,omitempty"`
	Tickets  int           `json:"tickets"`
	Parked   int           `json:"parked"`
	// Store: when the record was read and written last, ago, and the last error.
	StoreRead    time.Duration `json:"store_read_ns"`
	StoreWritten time.Duration `json:"store_written_ns"`
	StoreError   string        `json:"store_error,omitempty"`
	StoreWrites  uint64        `json:"store_writes"`
	// Shares are this member's, some at most, by which it decides without a keeper.
	Shares   []ShareView `json:"shares"`
	Counters Counters    `json:"-"`
	// View is the keeper's, ViewAge how old it is.
	View    *ClusterView  `json:"cluster,omitempty"`
	ViewAge time.Duration `json:"view_age_ns"`
}

// Status tells what this member knows.
func (m *Machine) Status() Status {
	s := Status{Self: m.o.Self, Counters: m.counters}
	m.election.status(&s)
	m.member.status(&s)
	if m.keeper != nil {
		v := m.keeper.view()
		s.View, s.ViewAge = &v, 0
	}
	return s
}

// heardLately is how long ago the keeper may have been heard for what is known of it to
// count: some beats.
const heardLately = time.Second

// Decides tells whether a keeper decides for all, as far as this member knows.
func (s *Status) Decides() bool {
	return s.View != nil && s.View.Deciding && s.View.Epoch == s.Promised && s.Heard >= 0 && s.Heard < heardLately
}
