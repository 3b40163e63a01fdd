package cindercontract

import (
	"fmt"
	"strings"

	"github.com/standalone-cinder/standalone-cinder/backends/cinder"
)

// states are those that a volume stays in, and how to reach them.
var states = []struct {
	name  string
	looks string
	reach func(*subject)
}{
	{"available", "available", func(s *subject) { s.create(s.Type) }},
	{"reserved by an action", "attaching", func(s *subject) {
		s.create(s.Type)
		s.must(s.Cinder.Reserve(s.ctx, s.id))
	}},
	{"in use by an action", "in-use, shows 1, lists attached, marked", func(s *subject) {
		s.create(s.Type)
		s.must(s.Cinder.Reserve(s.ctx, s.id))
		s.must(s.Cinder.Attach(s.ctx, s.id, "node1", false))
		s.lastAttachment()
	}},
	{"was in use", "available, marked", func(s *subject) {
		s.create(s.Type)
		s.must(s.Cinder.Attach(s.ctx, s.id, "node1", false))
		s.must(s.Cinder.Detach(s.ctx, s.id, ""))
	}},
	{"connected by an attachment", "attaching, lists attaching", func(s *subject) {
		s.create(s.Type)
		s.connect()
	}},
	{"in use by an attachment", "in-use, shows 1, lists attached", func(s *subject) {
		s.create(s.Type)
		s.connect()
		s.must(s.Cinder.CompleteAttachment(s.ctx, s.attachment))
	}},
	{"in error", "error", func(s *subject) {
		if s.FailingType == "" {
			s.t.Skip("no volume type is known whose volumes end in error")
		}
		s.create(s.FailingType)
	}},
	{"gone", "gone", func(s *subject) {
		s.create(s.Type)
		s.must(s.Cinder.DeleteVolume(s.ctx, s.id))
		s.settled()
	}},
}

// lastAttachment records the one attachment in the volume's document.
func (s *subject) lastAttachment() {
	s.t.Helper()
	v, err := s.Cinder.Volume(s.ctx, s.id)
	s.must(err)
	if len(v.Attachments) != 1 {
		s.t.Fatalf("the volume shows %d attachments", len(v.Attachments))
	}
	s.attachment = v.Attachments[0].ID
}

// connect makes an attachment with a connection.
func (s *subject) connect() {
	s.t.Helper()
	var document []byte
	var err error
	s.attachment, document, err = s.Cinder.CreateAttachment(s.ctx, s.id, connector(), false)
	s.must(err)
	s.isDocument(document)
}

func (s *subject) isDocument(document []byte) {
	s.t.Helper()
	if !strings.Contains(string(document), `"driver_volume_type"`) {
		s.t.Errorf("the connection is %d bytes without a driver_volume_type", len(document))
	}
}

// unknown is an ID that does not exist.
const unknown = "00000000-0000-4000-8000-000000000000"

// ofAttachment returns the ID of the volume's attachment, or one that does not
// exist.
func (s *subject) ofAttachment() string {
	if s.attachment == "" {
		return unknown
	}
	return s.attachment
}

// actions are the methods that may change a volume.
var actions = map[string]func(*subject) error{
	"Reserve":   func(s *subject) error { return s.Cinder.Reserve(s.ctx, s.id) },
	"Unreserve": func(s *subject) error { return s.Cinder.Unreserve(s.ctx, s.id) },
	"InitializeConnection": func(s *subject) error {
		document, err := s.Cinder.InitializeConnection(s.ctx, s.id, connector())
		if err == nil {
			s.isDocument(document)
		}
		return err
	},
	"TerminateConnection": func(s *subject) error { return s.Cinder.TerminateConnection(s.ctx, s.id, connector()) },
	"Attach":              func(s *subject) error { return s.Cinder.Attach(s.ctx, s.id, "node1", false) },
	"Attach of another host": func(s *subject) error {
		return s.Cinder.Attach(s.ctx, s.id, "node2", false)
	},
	"Attach read-only":         func(s *subject) error { return s.Cinder.Attach(s.ctx, s.id, "node3", true) },
	"Detach":                   func(s *subject) error { return s.Cinder.Detach(s.ctx, s.id, "") },
	"Detach of its attachment": func(s *subject) error { return s.Cinder.Detach(s.ctx, s.id, s.ofAttachment()) },
	"Detach of an unknown one": func(s *subject) error { return s.Cinder.Detach(s.ctx, s.id, unknown) },
	"DeleteVolume":             func(s *subject) error { return s.Cinder.DeleteVolume(s.ctx, s.id) },
	"ForceDeleteVolume":        func(s *subject) error { return s.Cinder.ForceDeleteVolume(s.ctx, s.id) },
	"UpdateMetadata":           func(s *subject) error { return s.Cinder.UpdateMetadata(s.ctx, s.id, map[string]string{"a": "b"}) },
	"CompleteAttachment":       func(s *subject) error { return s.Cinder.CompleteAttachment(s.ctx, s.ofAttachment()) },
	"DeleteAttachment":         func(s *subject) error { return s.Cinder.DeleteAttachment(s.ctx, s.ofAttachment()) },
	"CreateAttachment": func(s *subject) error {
		_, document, err := s.Cinder.CreateAttachment(s.ctx, s.id, connector(), false)
		if err == nil {
			s.isDocument(document)
		}
		return err
	},
	"ExtendVolume": func(s *subject) error {
		v, _ := s.settled()
		return s.Cinder.ExtendVolume(s.ctx, s.id, 2, v.Status == cinder.StatusInUse)
	},
	"ExtendVolume to its size": func(s *subject) error { return s.Cinder.ExtendVolume(s.ctx, s.id, 1, false) },
	"RetypeVolume": func(s *subject) error {
		err := s.Cinder.RetypeVolume(s.ctx, s.id, s.otherType(), false)
		if err == nil {
			s.retyped()
		}
		return err
	},
	"RetypeVolume to its type":         func(s *subject) error { return s.Cinder.RetypeVolume(s.ctx, s.id, s.itsType(), false) },
	"RetypeVolume to one that is none": func(s *subject) error { return s.Cinder.RetypeVolume(s.ctx, s.id, "unknown", false) },
	"CreateSnapshot": func(s *subject) error {
		made, err := s.Cinder.CreateSnapshot(s.ctx, cinder.NewSnapshot{Name: newName(), VolumeID: s.id})
		if err == nil {
			s.taken = append(s.taken, made.ID)
		}
		return err
	},
	"Volume": func(s *subject) error {
		v, err := s.Cinder.Volume(s.ctx, s.id)
		if err == nil && v.ID != s.id {
			return fmt.Errorf("the volume is %s, want %s", v.ID, s.id)
		}
		return err
	},
}

// outcome is the result of an action.
type outcome struct {
	kind  cinder.Kind
	after string
	// member is the result for an account that is not an administrator; nil if
	// it is the same.
	member *outcome
}

// never replaces the outcome of actions that the lifecycle does not take in a
// state, and for which there is no recording of real Cinder.
var never = outcome{}

// table is what each action does to a volume in each state, always as in Cinder
// 21.3.1 (Zed).
var table = map[string]map[string]outcome{
	"available": {
		"Attach":                           {after: "in-use, shows 1, lists attached, marked"},
		"Attach of another host":           {after: "in-use, shows 1, lists attached, marked"},
		"Attach read-only":                 {after: "in-use, shows 1, lists attached, marked"},
		"CompleteAttachment":               {kind: cinder.KindNotFound, after: "available"},
		"CreateAttachment":                 {after: "attaching, lists attaching"},
		"DeleteAttachment":                 {kind: cinder.KindNotFound, after: "available"},
		"DeleteVolume":                     {after: "gone"},
		"ExtendVolume":                     {after: "available, 2 GiB"},
		"ExtendVolume to its size":         {kind: cinder.KindInvalid, after: "available"},
		"RetypeVolume":                     {after: "available"},
		"RetypeVolume to its type":         {kind: cinder.KindConflict, after: "available"},
		"RetypeVolume to one that is none": {kind: cinder.KindNotFound, after: "available"},
		"CreateSnapshot":                   {after: "available, 1 snapshot"},
		"Detach":                           {after: "available"},
		"Detach of an unknown one":         {kind: cinder.KindConflict, after: "available"},
		"Detach of its attachment":         never,
		"ForceDeleteVolume":                {after: "gone", member: &outcome{kind: cinder.KindForbidden, after: "available"}},
		"InitializeConnection":             {after: "available"},
		"Reserve":                          {after: "attaching"},
		"TerminateConnection":              {after: "available"},
		"Unreserve":                        {after: "available"},
		"UpdateMetadata":                   {after: "available"},
		"Volume":                           {after: "available"},
	},
	"reserved by an action": {
		"Attach":                           {after: "in-use, shows 1, lists attached, marked"},
		"Attach of another host":           {after: "in-use, shows 1, lists attached, marked"},
		"Attach read-only":                 {after: "in-use, shows 1, lists attached, marked"},
		"CompleteAttachment":               {kind: cinder.KindNotFound, after: "attaching"},
		"CreateAttachment":                 {kind: cinder.KindConflict, after: "attaching"},
		"DeleteAttachment":                 {kind: cinder.KindNotFound, after: "attaching"},
		"DeleteVolume":                     {kind: cinder.KindConflict, after: "attaching"},
		"ExtendVolume":                     {kind: cinder.KindConflict, after: "attaching"},
		"ExtendVolume to its size":         {kind: cinder.KindInvalid, after: "attaching"},
		"RetypeVolume":                     {kind: cinder.KindConflict, after: "attaching"},
		"RetypeVolume to its type":         {kind: cinder.KindConflict, after: "attaching"},
		"RetypeVolume to one that is none": {kind: cinder.KindNotFound, after: "attaching"},
		"CreateSnapshot":                   {kind: cinder.KindConflict, after: "attaching"},
		"Detach":                           {after: "available"},
		"Detach of an unknown one":         {kind: cinder.KindConflict, after: "attaching"},
		"Detach of its attachment":         never,
		"ForceDeleteVolume":                never,
		"InitializeConnection":             {after: "attaching"},
		"Reserve":                          {kind: cinder.KindConflict, after: "attaching"},
		"TerminateConnection":              {after: "available"},
		"Unreserve":                        {after: "available"},
		"UpdateMetadata":                   {after: "attaching"},
		"Volume":                           {after: "attaching"},
	},
	"in use by an action": {
		"Attach":                           {after: "in-use, shows 1, lists attached, marked", member: &outcome{kind: cinder.KindUnavailable, after: "in-use, shows 1, lists attached, marked"}},
		"Attach of another host":           {kind: cinder.KindConflict, after: "in-use, shows 1, lists attached, marked"},
		"Attach read-only":                 {kind: cinder.KindConflict, after: "in-use, shows 1, lists attached, marked"},
		"CompleteAttachment":               never,
		"CreateAttachment":                 {kind: cinder.KindConflict, after: "in-use, shows 1, lists attached, marked"},
		"DeleteAttachment":                 {after: "available, marked"},
		"DeleteVolume":                     {kind: cinder.KindConflict, after: "in-use, shows 1, lists attached, marked"},
		"ExtendVolume":                     {after: "in-use, 2 GiB, shows 1, lists attached, marked"},
		"ExtendVolume to its size":         {kind: cinder.KindInvalid, after: "in-use, shows 1, lists attached, marked"},
		"RetypeVolume":                     {after: "in-use, shows 1, lists attached, marked"},
		"RetypeVolume to its type":         {kind: cinder.KindConflict, after: "in-use, shows 1, lists attached, marked"},
		"RetypeVolume to one that is none": {kind: cinder.KindNotFound, after: "in-use, shows 1, lists attached, marked"},
		"CreateSnapshot":                   {after: "in-use, 1 snapshot, shows 1, lists attached, marked"},
		"Detach":                           {after: "available, marked"},
		"Detach of an unknown one":         {kind: cinder.KindConflict, after: "in-use, shows 1, lists attached, marked"},
		"Detach of its attachment":         {after: "available, marked"},
		"ForceDeleteVolume":                {kind: cinder.KindConflict, after: "in-use, shows 1, lists attached, marked", member: &outcome{kind: cinder.KindForbidden, after: "in-use, shows 1, lists attached, marked"}},
		"InitializeConnection":             {after: "in-use, shows 1, lists attached, marked"},
		"Reserve":                          {kind: cinder.KindConflict, after: "in-use, shows 1, lists attached, marked"},
		"TerminateConnection":              {after: "in-use, shows 1, lists attached, marked"},
		"Unreserve":                        {after: "in-use, shows 1, lists attached, marked"},
		"UpdateMetadata":                   {after: "in-use, shows 1, lists attached, marked"},
		"Volume":                           {after: "in-use, shows 1, lists attached, marked"},
	},
	"was in use": {
		"Attach":                           {after: "in-use, shows 1, lists attached, marked"},
		"Attach of another host":           {after: "in-use, shows 1, lists attached, marked"},
		"Attach read-only":                 {after: "in-use, shows 1, lists attached, marked"},
		"CompleteAttachment":               {kind: cinder.KindNotFound, after: "available, marked"},
		"CreateAttachment":                 {after: "attaching, lists attaching, marked"},
		"DeleteAttachment":                 {kind: cinder.KindNotFound, after: "available, marked"},
		"DeleteVolume":                     {after: "gone"},
		"ExtendVolume":                     {after: "available, 2 GiB, marked"},
		"ExtendVolume to its size":         {kind: cinder.KindInvalid, after: "available, marked"},
		"RetypeVolume":                     {after: "available, marked"},
		"RetypeVolume to its type":         {kind: cinder.KindConflict, after: "available, marked"},
		"RetypeVolume to one that is none": {kind: cinder.KindNotFound, after: "available, marked"},
		"CreateSnapshot":                   {after: "available, 1 snapshot, marked"},
		"Detach":                           {after: "available, marked"},
		"Detach of an unknown one":         {kind: cinder.KindConflict, after: "available, marked"},
		"Detach of its attachment":         never,
		"ForceDeleteVolume":                {after: "gone", member: &outcome{kind: cinder.KindForbidden, after: "available, marked"}},
		"InitializeConnection":             {after: "available, marked"},
		"Reserve":                          {after: "attaching, marked"},
		"TerminateConnection":              {after: "available, marked"},
		"Unreserve":                        {after: "available, marked"},
		"UpdateMetadata":                   {after: "available, marked"},
		"Volume":                           {after: "available, marked"},
	},
	"connected by an attachment": {
		"Attach":                           never,
		"Attach of another host":           never,
		"Attach read-only":                 never,
		"CompleteAttachment":               {after: "in-use, shows 1, lists attached"},
		"CreateAttachment":                 {kind: cinder.KindConflict, after: "attaching, lists attaching"},
		"DeleteAttachment":                 {after: "available"},
		"DeleteVolume":                     {kind: cinder.KindConflict, after: "attaching, lists attaching"},
		"ExtendVolume":                     {kind: cinder.KindConflict, after: "attaching, lists attaching"},
		"ExtendVolume to its size":         {kind: cinder.KindInvalid, after: "attaching, lists attaching"},
		"RetypeVolume":                     {kind: cinder.KindConflict, after: "attaching, lists attaching"},
		"RetypeVolume to its type":         {kind: cinder.KindConflict, after: "attaching, lists attaching"},
		"RetypeVolume to one that is none": {kind: cinder.KindNotFound, after: "attaching, lists attaching"},
		"CreateSnapshot":                   {kind: cinder.KindConflict, after: "attaching, lists attaching"},
		"Detach":                           never,
		"Detach of an unknown one":         {kind: cinder.KindConflict, after: "attaching, lists attaching"},
		"Detach of its attachment":         never,
		"ForceDeleteVolume":                never,
		"InitializeConnection":             {after: "attaching, lists attaching"},
		"Reserve":                          {kind: cinder.KindConflict, after: "attaching, lists attaching"},
		"TerminateConnection":              {after: "in-use, lists attaching"},
		"Unreserve":                        {after: "in-use, lists attaching"},
		"UpdateMetadata":                   {after: "attaching, lists attaching"},
		"Volume":                           {after: "attaching, lists attaching"},
	},
	"in use by an attachment": {
		"Attach":                           never,
		"Attach of another host":           never,
		"Attach read-only":                 never,
		"CompleteAttachment":               {after: "in-use, shows 1, lists attached"},
		"CreateAttachment":                 {kind: cinder.KindConflict, after: "in-use, shows 1, lists attached"},
		"DeleteAttachment":                 {after: "available"},
		"DeleteVolume":                     {kind: cinder.KindConflict, after: "in-use, shows 1, lists attached"},
		"ExtendVolume":                     {after: "in-use, 2 GiB, shows 1, lists attached"},
		"ExtendVolume to its size":         {kind: cinder.KindInvalid, after: "in-use, shows 1, lists attached"},
		"RetypeVolume":                     {after: "in-use, shows 1, lists attached"},
		"RetypeVolume to its type":         {kind: cinder.KindConflict, after: "in-use, shows 1, lists attached"},
		"RetypeVolume to one that is none": {kind: cinder.KindNotFound, after: "in-use, shows 1, lists attached"},
		"CreateSnapshot":                   {after: "in-use, 1 snapshot, shows 1, lists attached"},
		"Detach":                           {after: "available"},
		"Detach of an unknown one":         {kind: cinder.KindConflict, after: "in-use, shows 1, lists attached"},
		"Detach of its attachment":         {after: "available"},
		"ForceDeleteVolume":                {kind: cinder.KindConflict, after: "in-use, shows 1, lists attached", member: &outcome{kind: cinder.KindForbidden, after: "in-use, shows 1, lists attached"}},
		"InitializeConnection":             {after: "in-use, shows 1, lists attached"},
		"Reserve":                          {kind: cinder.KindConflict, after: "in-use, shows 1, lists attached"},
		"TerminateConnection":              {after: "in-use, shows 1, lists attached"},
		"Unreserve":                        {after: "in-use, shows 1, lists attached"},
		"UpdateMetadata":                   {after: "in-use, shows 1, lists attached"},
		"Volume":                           {after: "in-use, shows 1, lists attached"},
	},
	"in error": {
		"Attach":                           never,
		"Attach of another host":           never,
		"Attach read-only":                 never,
		"CompleteAttachment":               {kind: cinder.KindNotFound, after: "error"},
		"CreateAttachment":                 {kind: cinder.KindConflict, after: "error"},
		"DeleteAttachment":                 {kind: cinder.KindNotFound, after: "error"},
		"DeleteVolume":                     {after: "gone"},
		"ExtendVolume":                     {kind: cinder.KindConflict, after: "error"},
		"ExtendVolume to its size":         {kind: cinder.KindInvalid, after: "error"},
		"RetypeVolume":                     {kind: cinder.KindConflict, after: "error"},
		"RetypeVolume to its type":         {kind: cinder.KindConflict, after: "error"},
		"RetypeVolume to one that is none": {kind: cinder.KindNotFound, after: "error"},
		"CreateSnapshot":                   {kind: cinder.KindConflict, after: "error"},
		"Detach":                           never,
		"Detach of an unknown one":         {kind: cinder.KindConflict, after: "error"},
		"Detach of its attachment":         never,
		"ForceDeleteVolume":                {after: "gone", member: &outcome{kind: cinder.KindForbidden, after: "error"}},
		"InitializeConnection":             {kind: cinder.KindUnavailable, after: "error"},
		"Reserve":                          {kind: cinder.KindConflict, after: "error"},
		"TerminateConnection":              never,
		"Unreserve":                        {after: "error"},
		"UpdateMetadata":                   {after: "error"},
		"Volume":                           {after: "error"},
	},
	"gone": {
		"Attach":                           {kind: cinder.KindNotFound, after: "gone"},
		"Attach of another host":           {kind: cinder.KindNotFound, after: "gone"},
		"Attach read-only":                 {kind: cinder.KindNotFound, after: "gone"},
		"CompleteAttachment":               {kind: cinder.KindNotFound, after: "gone"},
		"CreateAttachment":                 {kind: cinder.KindNotFound, after: "gone"},
		"DeleteAttachment":                 {kind: cinder.KindNotFound, after: "gone"},
		"DeleteVolume":                     {kind: cinder.KindNotFound, after: "gone"},
		"ExtendVolume":                     {kind: cinder.KindNotFound, after: "gone"},
		"ExtendVolume to its size":         {kind: cinder.KindNotFound, after: "gone"},
		"RetypeVolume":                     {kind: cinder.KindNotFound, after: "gone"},
		"RetypeVolume to its type":         {kind: cinder.KindNotFound, after: "gone"},
		"RetypeVolume to one that is none": {kind: cinder.KindNotFound, after: "gone"},
		"CreateSnapshot":                   {kind: cinder.KindNotFound, after: "gone"},
		"Detach":                           {kind: cinder.KindNotFound, after: "gone"},
		"Detach of an unknown one":         {kind: cinder.KindNotFound, after: "gone"},
		"Detach of its attachment":         never,
		"ForceDeleteVolume":                {kind: cinder.KindNotFound, after: "gone"},
		"InitializeConnection":             {kind: cinder.KindNotFound, after: "gone"},
		"Reserve":                          {kind: cinder.KindNotFound, after: "gone"},
		"TerminateConnection":              {kind: cinder.KindNotFound, after: "gone"},
		"Unreserve":                        {kind: cinder.KindNotFound, after: "gone"},
		"UpdateMetadata":                   {kind: cinder.KindNotFound, after: "gone"},
		"Volume":                           {kind: cinder.KindNotFound, after: "gone"},
	},
}
