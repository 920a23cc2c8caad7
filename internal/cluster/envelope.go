package cluster

import (
	"time"

	"github.com/sluice-router/sluice/admission"
)

// Envelope is what one member sends another at one time. Beats are envelopes without
// items.
type Envelope struct {
	From, To Incarnation
	// Stamp numbers the envelopes of this sender to this peer; Echo is the last Stamp that
	// it received from it. They tell who answers, whatever the epoch.
	Stamp, Echo uint64
	// EchoAge is for how long the sender had that stamp, so that the time on the way can be
	// told from the time until there was something to send.
	EchoAge time.Duration
	// Epoch is what the sender has promised, its own when it is the keeper. Office is what
	// it may do now, in that case; Heard: the keeper of Epoch is in office, as the sender
	// heard lately.
	Epoch  Epoch
	Office Office
	Heard  bool
	// Wanted: requests wait at the sender, the keeper, so that steps are to be told at once.
	Wanted bool

	// Items are in order. Those between a member and its keeper belong to a Session, which
	// the member opens with its report; Seq numbers the envelopes of a session that have
	// items, by direction, from 1 on, and Ack is the last that was received in order.
	Session, Seq, Ack uint64
	Items             []Item

	// Control are messages outside sessions. They repeat until they are answered.
	Control []Control
}

// Office is what the sender of an envelope may do as the keeper of its epoch.
type Office uint8

const (
	// OfficeNone is that it is not the keeper, or was confirmed by nobody for too long.
	OfficeNone Office = iota
	// OfficeOpening is that it is, and collects what members report.
	OfficeOpening
	// OfficeDeciding is that it grants and refuses.
	OfficeDeciding
)

// Control is a message about who is the keeper.
type Control struct {
	Kind ControlKind
	// Epoch is the one that is proclaimed or handed over; with ControlRefused the one that
	// was promised to another.
	Epoch Epoch
	// Heard: the keeper of Epoch is heard, with ControlRefused.
	Heard bool
	// Members are the sender's, with ControlSummons (as written to the store) and
	// ControlHello (itself).
	Members []Member
	// Soft is the soft state of the core, with ControlHandover.
	Soft []byte
	// Reason is for people, with ControlReject.
	Reason string
}

// ControlKind is what a [Control] is.
type ControlKind uint8

const (
	// ControlHello asks a keeper to list the sender.
	ControlHello ControlKind = iota + 1
	// ControlSummons asks for the promise to an epoch, and a report.
	ControlSummons
	// ControlRefused answers a summons: a higher epoch was promised.
	ControlRefused
	// ControlHandover makes the receiver the keeper of Epoch, which the store has.
	ControlHandover
	// ControlGoodbye tells that the sender ends, or has nothing any more.
	ControlGoodbye
	// ControlReject tells that the receiver may not be a member, for the reason.
	ControlReject
	// ControlResync asks a member for a new session, because an envelope is missing.
	ControlResync
)

// Item is one message between a member and its keeper. Which fields count is by Kind.
type Item struct {
	Kind    ItemKind
	Op      admission.StepOp // ItemStep
	Granted bool             // ItemDecision, ItemMoved
	Attempt uint32
	Number  uint64      // the member's number of its ticket
	Member  Incarnation // ItemHold: whose ticket it is
	// Amount is in all for the attempt, so that a repeat changes nothing: blocks grown.
	Amount          int64
	Prefill, Decode RankAt
	Place           Place
	// Body is what else there is: *Ask, *Refused, *Hints …, by Kind.
	Body any
}

// ItemKind is what an [Item] is, and what its Body is.
type ItemKind uint8

// From members to the keeper.
const (
	ItemArrive      ItemKind = iota + 1 // *Ask: Number arrives, Attempt of it
	ItemStep                            // Op, Amount; StepCancel and StepForget too
	ItemRefresh                         // *HintsOf
	ItemMove                            // []RankAt to avoid: asks for another decode rank
	ItemMovedAlone                      // Decode: where the member moved it without asking
	ItemReport                          // *Report
	ItemObserve                         // *Observation
	ItemConfigure                       // *Configuration
	ItemSharesTaken                     // Number: the version of the shares that is obeyed
)

// From the keeper to members.
const (
	ItemQueued   ItemKind = iota + 32 // Place, *Queued: it has to wait
	ItemDecision                      // Granted, Prefill, Decode, or *Refused; *Grant
	ItemRenew                         // the hints of Number are to be renewed
	ItemMoved                         // answers ItemMove: Granted, Decode
	ItemRows                          // *Rows: ranks of the table
	ItemShares                        // *Shares
	ItemHold                          // *HoldOf (as granted, or moved), or Op and Amount (a step of that): to the standby
	ItemHolds                         // *Holds: all holds, to a new standby
	ItemStatus                        // *ClusterView: what members tell operators
)

// Both ways.
const (
	ItemDocuments ItemKind = iota + 64 // *Documents
)

// Ask is what a ticket asks for, in times that mean the same everywhere.
type Ask struct {
	// Request is the ticket's, but for its instants, which are not used.
	Request admission.Request
	// Age is the time since the first arrival, Waited that of earlier waits.
	Age, Waited time.Duration
	// Deadline and ClassDeadline are the time left; HasDeadline and HasClassDeadline tell
	// whether there are any.
	Deadline, ClassDeadline       time.Duration
	HasDeadline, HasClassDeadline bool
	// Holders of the hints by the table, in place of those of Request, whose are nil.
	Holders [2][]Holder
	// Exclude are ranks to avoid while others are left, in place of those of Request.
	Exclude [2][]RankAt
}

// Holder is a rank that is believed to have cached so many tokens of a prompt.
type Holder struct {
	Rank   RankAt
	Tokens int64
}

// HintsOf are renewed hints.
type HintsOf struct {
	Hints   [2]admission.RequestHint // without holders
	Holders [2][]Holder
}

// Queued tells a member what it needs to end a wait by itself.
type Queued struct {
	// Left is until the keeper would end the wait at the latest, for the Reason and with
	// the Limit of that; zero: it would not.
	Left   time.Duration
	Reason admission.Reason
	Kind   admission.LimitKind
	Limit  int64
	Class  string
	Lacked admission.Resource
	Slots  bool // of a refusal: PrefillSlots
}

// Grant is what a granted ticket is told beside its ranks.
type Grant struct {
	Class  string
	Waited time.Duration // over all waits
	Queued bool
	Lacked admission.Resource
	Choice admission.Choice
	// Tokens and Blocks are what was booked.
	Tokens, Blocks int64
}

// Refused is a refusal, and what the ticket is told beside.
type Refused struct {
	Refusal admission.Refusal
	Class   string
	Waited  time.Duration
}

// HoldOf is what a granted ticket holds.
type HoldOf struct {
	Ask                                     *Ask // what was asked for; its times do not count
	HoldsPrefill, HoldsDecode, DecodeActive bool
	FirstToken                              bool
	Tokens, Blocks                          int64         // booked by the grant, or by the move
	Grown                                   int64         // blocks since
	Age                                     time.Duration // of the grant
	Class                                   string
}

// HoldEntry is one ticket of [Holds] or of a [Report].
type HoldEntry struct {
	Ticket          TicketID
	Attempt         uint32
	Prefill, Decode string // rank ids: tables may differ
	Hold            HoldOf
}

// Holds are all holds that a keeper knows. First and Last tell the parts of a long one.
type Holds struct {
	First, Last bool
	Entries     []HoldEntry
}

// Waiter is a ticket that waits, or is parked, in a [Report].
type Waiter struct {
	Number  uint64
	Attempt uint32
	Place   Place // none: no keeper has queued it
	Ask     Ask   // Age and Waited as of now
	Queued  *Queued
	Passes  int
	// Holders and Exclude of Ask name ranks by id here.
	HolderIDs  [2][]string
	ExcludeIDs [2][]string
}

// Report is what a member tells a keeper when it promises itself to its epoch, or when
// messages were lost. First and Last tell the parts of a long one; what is about the
// whole is in the first.
type Report struct {
	First, Last bool
	Self        Member
	Holds       []HoldEntry // its own
	Waiters     []Waiter    // its own, parked ones too
	// Foreign are the holds of others that it knows of as a standby; Standby: it was one,
	// of the epoch, and has all.
	Foreign []HoldEntry
	Standby bool
	Of      Epoch // the last epoch that it obeyed
	// Known are the members that it knows of, Ended those that it knows to have ended.
	Known []Member
	Ended []Incarnation
	// Shares is what it obeys, Fallback what it does without a keeper.
	Shares        Shares
	Fallback      Fallback
	Rows          *Rows // its copy of the table
	Configuration *Configuration
	Documents     *Documents
	Observation   *Observation // all ranks that it knows
}

// Configuration is what a member was configured with.
type Configuration struct {
	Generation uint64        // 0: none
	Age        time.Duration // since it was loaded
	Digest     uint64        // of the settings
	Settings   admission.Settings
}

// Shares are the lists of members by which limits are divided when there is no keeper.
// While two are in force a share is the smaller one.
type Shares struct {
	Version   uint64 // of Proposed, or of Committed when nothing is proposed
	Committed []Incarnation
	Proposed  []Incarnation // nil: nothing
	// Settings by which the shares of each are taken.
	CommittedSettings *admission.Settings
	ProposedSettings  *admission.Settings
}
